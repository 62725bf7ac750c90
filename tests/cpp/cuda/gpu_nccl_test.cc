// Mode NCCL through the whole engine, with an NCCL that the host plays on the fake GPU: ranks are
// threads. Processes: tests/fake_gpu.
#include <cstring>

#include "execute/cuda/nccl/nccl_comm.h"
#include "fake_cuda/gpu_calls.h"

namespace horoacc::testing {
namespace {

/// On these hosts, or on one.
Pairs WithNccl(const char* hosts = "") {
  return With(InMode("nccl"), {{"nccl_library", HOST_NCCL},
                               {"simulated_hosts", hosts},
                               {"fusion_threshold", "65536"}});  // several windows
}

TEST(what_is_missing_is_told) {
  const auto missing = cuda::LoadNccl("/nowhere/libnccl.so.2");
  CHECK(!missing.ok());
  CHECK(missing.error().message.find("NCCL cannot be loaded: /nowhere") != std::string::npos);
  const auto other = cuda::LoadNccl("libm.so.6");
  CHECK(!other.ok());
  CHECK(other.error().message.find("libm.so.6 is no NCCL of 2.14 or newer: it has no nccl") !=
        std::string::npos);
  const auto played = cuda::LoadNccl(HOST_NCCL);
  CHECK(played.ok());
  CHECK_EQ(played.value().Version(), "2.27.7");
}

TEST(what_nccl_reduces) {
  using cuda::NcclReduces;
  CHECK(NcclReduces(DType::kFloat16, ReduceOp::kAverage, {0.5, 2.0, 3.0}));
  CHECK(NcclReduces(DType::kInt64, ReduceOp::kSum, {}));
  CHECK(!NcclReduces(DType::kInt64, ReduceOp::kAverage, {1.0, 1.0, 3.0}));
  CHECK(!NcclReduces(DType::kInt16, ReduceOp::kSum, {}));
  CHECK(!NcclReduces(DType::kBool, ReduceOp::kMax, {}));
  CHECK(!NcclReduces(DType::kFloat32, ReduceOp::kAdasum, {}));
  CHECK(!NcclReduces(DType::kInt32, ReduceOp::kBitAnd, {}));
}

TEST(sums_of_many_lengths) {
  for (const int ranks : {1, 2, 3}) {
    RunRanks(ranks, WithNccl(), [&](Engine& engine, int rank) {
      void* const stream = fake_cuda_stream(0);
      for (const size_t count : {1, 1000, 70001}) {
        const Numbers input(count);
        const Numbers output(count);
        output.Fill(stream, [](size_t) { return -1; });
        input.Fill(stream, [rank](size_t i) { return Value(rank, i); });
        Finish(engine, engine.Submit(OnGpu(Collective::kAllreduce, "a", input, &output, stream)),
               stream);
        output.Expect(stream, [ranks](size_t i) { return Value(ranks * (ranks + 1) / 2 - 1, i); });
        CHECK_EQ(engine.counters().gpu_bytes.load(), uint64_t{0});
      }
      CHECK_EQ(engine.counters().gpu_nccl_bytes.load(), uint64_t{4 * 71002});
    });
  }
}

// Whole numbers so small that neither an order of sums nor its roundings show.
void FillSmall(int rank, const CaseTensor& tensor, std::vector<std::byte>& bytes) {
  oracle::WithType(tensor.type, [&](auto zero) {
    using T = decltype(zero);
    for (size_t i = 0; i < tensor.count; ++i) {
      const size_t drawn = 7 * i + static_cast<size_t>(rank) * 3;
      const auto small =
          static_cast<float>(tensor.op == ReduceOp::kProduct ? 1 + drawn % 2 : drawn % 5);
      T value{};
      if constexpr (requires { T::Round(small); }) {
        value = T::Round(small);
      } else {
        value = static_cast<T>(small);
      }
      std::memcpy(&bytes[i * sizeof(T)], &value, sizeof value);
    }
  });
}

// Everything that NCCL has, and the rest, which is the CPU's, on hosts of any shape. Averages over
// powers of two are exact.
TEST(hosts_reduce_by_nccl) {
  for (const auto& [hosts, ranks] : {std::pair("1+1", 2), {"3+1", 4}, {"2+2", 4}, {"2+1+3+2", 8}}) {
    std::vector<CaseTensor> tensors;
    uint64_t by_nccl = 0;
    for (int type = 0; type < kDTypeCount; ++type) {
      const auto of = static_cast<DType>(type);
      for (const ReduceOp by : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax,
                                ReduceOp::kProduct}) {
        if (!CheckReducible(of, by).ok()) continue;
        CaseTensor tensor{of, by, {}, 30'001};
        if (by == ReduceOp::kAverage) tensor.scale.divisor = ranks;
        tensors.push_back(tensor);
      }
      if (!CheckReducible(of, ReduceOp::kSum).ok()) continue;
      for (const uint64_t count : {0, 1, 255})
        tensors.push_back({of, ReduceOp::kSum, {0.5, 0.25, 1.0}, count});
    }
    for (const CaseTensor& tensor : tensors) {
      if (cuda::NcclReduces(cuda::ReducedAs(tensor.type, tensor.op), tensor.op, tensor.scale))
        by_nccl += 2 * tensor.count * SizeOf(tensor.type);
    }
    RunRanks(ranks, WithNccl(hosts), [&](Engine& engine, int rank) {
      CompareWithHost(engine, rank % 2, tensors, rank % 3 == 0, hosts,
                      [rank](const CaseTensor& tensor, std::vector<std::byte>& bytes) {
                        FillSmall(rank, tensor, bytes);
                      });
      CHECK_EQ(Counter(engine, "gpu_nccl_bytes"), by_nccl);
      CHECK(Counter(engine, "gpu_bytes") > 0);
      CHECK_EQ(Counter(engine, "gpu_composed_bytes"), 0U);
    });
  }
}

// Hosts whose GPUs add up in the usual mode do not look for NCCL, however fast it was measured.
TEST(a_measured_nccl_is_not_that_of_several_hosts) {
  const Pairs settings =
      With(WithNccl("2+2"), {{"gpu_mode", "auto"},
                             {"reduction", "fast"},
                             {"selection_table", "gpu_leader@2:64=2;gpu_nccl@2:64=1"}});
  RunRanks(4, settings, [](Engine& engine, int) {
    void* const stream = fake_cuda_stream(0);
    const Numbers tensor(100'000);
    tensor.Fill(stream, [](size_t) { return 1; });
    Finish(engine, engine.Submit(OnGpu(Collective::kAllreduce, "x", tensor, &tensor, stream)),
           stream);
    tensor.Expect(stream, [](size_t) { return 4; });
    CHECK_EQ(Counter(engine, "gpu_composed_bytes"), uint64_t{400'000});
  });
}

// If one rank cannot have the mode it is refused on all ranks, and the job goes on.
void RefusedOnAll(const char* hosts, int ranks, const std::string& why,
                  const std::function<void(Settings&, int)>& change) {
  RunRanks(
      ranks, WithNccl(hosts),
      [&](Engine& engine, int) {
        const Numbers tensor(10);
        tensor.Fill(nullptr, [](size_t) { return 1; });
        // NCCL has no averages of integers, so it need not be there for one.
        Submission average = OnGpu(Collective::kAllreduce, "a", tensor, &tensor, nullptr);
        average.request.op = ReduceOp::kAverage;
        const auto averaged = engine.Submit(std::move(average));
        CHECK(averaged.ok());
        CHECK(WaitAndRelease(engine, averaged.value()).ok());
        for (int k = 0; k < 2; ++k) {
          const auto handle =
              engine.Submit(OnGpu(Collective::kAllreduce, "x", tensor, &tensor, nullptr));
          CHECK(handle.ok());
          const Status outcome = WaitAndRelease(engine, handle.value());
          CHECK(!outcome.ok());
          CHECK_EQ(outcome.error().kind, ErrorKind::kConfig);
          CHECK(outcome.error().message.find(why) != std::string::npos);
        }
        std::vector<int32_t> here(5, 1);
        const auto handle = engine.Submit(
            Make(Collective::kAllreduce, "y", DType::kInt32, {5}, here.data(), here.data()));
        CHECK(handle.ok());
        CHECK(WaitAndRelease(engine, handle.value()).ok());
        CHECK_EQ(here[4], ranks);
      },
      {}, change);
}

TEST(what_one_rank_cannot_is_refused_on_all) {
  struct Case {
    const char* hosts;
    int ranks, refusing;
  };
  for (const Case& one :
       {Case{"", 2, 0}, {"", 2, 1}, {"1+1", 2, 1}, {"2+2", 4, 0}, {"2+2", 4, 3}, {"1+2+1", 4, 2}}) {
    const std::string who = "rank " + std::to_string(one.refusing) + " of the process set: ";
    if (one.refusing > 0) {
      RefusedOnAll(one.hosts, one.ranks,
                   "cannot be 'nccl': " + who + "NCCL cannot be loaded: /nowhere",
                   [&](Settings& settings, int rank) {
                     if (rank == one.refusing) settings.nccl_library = "/nowhere/libnccl.so.2";
                   });
    }
    // It fails in NCCL's rendezvous, in which the other ranks wait.
    ::setenv("HOST_NCCL_REFUSES", std::to_string(one.refusing).c_str(), 1);
    RefusedOnAll(one.hosts, one.ranks, who + "NCCL: invalid usage: duplicate GPU (host)",
                 [](Settings&, int) {});
    ::unsetenv("HOST_NCCL_REFUSES");
  }
}

void ReduceOnes(Engine& engine, const Numbers& tensor, void* stream, uint32_t set, int ranks) {
  tensor.Fill(stream, [](size_t) { return 1; });
  Submission submission = OnGpu(Collective::kAllreduce, "ones", tensor, &tensor, stream);
  submission.process_set = set;
  Finish(engine, engine.Submit(std::move(submission)), stream);
  tensor.Expect(stream, [ranks](size_t) { return ranks; });
}

// Sets of the same ranks begin in another order on each, and inside a host while another waits.
TEST(a_set_on_several_hosts_and_sets_inside_them) {
  RunRanks(4, WithNccl("2+2"), [](Engine& engine, int rank) {
    const uint32_t pairs[] = {engine.AddProcessSet({0, 1}).value(),
                              engine.AddProcessSet({2, 3}).value()};
    void* const stream = fake_cuda_stream(0);
    const Numbers all(40'000), pair(40'000);
    std::vector<uint64_t> handles;
    for (int turn = 0; turn < 24; ++turn) {
      all.Fill(stream, [](size_t) { return 1; });
      pair.Fill(stream, [](size_t) { return 1; });
      for (int k = 0; k < 2; ++k) {
        const bool of_all = (turn + k + rank) % 2 == 0;
        const Numbers& given = of_all ? all : pair;
        Submission call = OnGpu(Collective::kAllreduce, "x", given, &given, stream);
        call.process_set = of_all ? 0 : pairs[rank / 2];
        const auto handle = engine.Submit(std::move(call));
        CHECK(handle.ok());
        handles.push_back(handle.value());
      }
      for (const uint64_t handle : std::exchange(handles, {}))
        Finish(engine, Result<uint64_t>(handle), stream);
      all.Expect(stream, [](size_t) { return 4; });
      pair.Expect(stream, [](size_t) { return 2; });
    }
    CHECK_EQ(Counter(engine, "gpu_nccl_bytes"), uint64_t{24 * 2 * 160'000});
  });
}

// The communicator has one GPU on each rank. Other hosts hear that the call is the CPU's.
TEST(tensors_on_another_gpu_are_the_cpus) {
  RunRanks(2, WithNccl("1+1"), [](Engine& engine, int rank) {
    for (const int device : {0, rank, 0}) {
      void* const stream = fake_cuda_stream(device);
      const Numbers tensor(1000, device);
      tensor.Fill(stream, [](size_t) { return 1; });
      Finish(engine,
             engine.Submit(OnGpu(Collective::kAllreduce, "x", tensor, &tensor, stream, 0, device)),
             stream);
      tensor.Expect(stream, [](size_t) { return 2; });
    }
    CHECK_EQ(Counter(engine, "gpu_nccl_bytes"), uint64_t{2 * 4000});
  });
}

// NCCL reduces across hosts for one set of a host, until that is removed.
TEST(another_set_on_several_hosts_is_refused) {
  RunRanks(4, WithNccl("2+2"), [](Engine& engine, int rank) {
    const uint32_t first = engine.AddProcessSet({0, 2}).value();
    const uint32_t other = engine.AddProcessSet({1, 3}).value();
    void* const stream = fake_cuda_stream(0);
    const Numbers tensor(40'000);
    const auto barrier = [&] {
      const auto handle = engine.Submit(Make(Collective::kBarrier, "b", DType::kInt32, {}, {}, {}));
      CHECK(handle.ok());
      CHECK(WaitAndRelease(engine, handle.value()).ok());
    };
    if (rank % 2 == 0) ReduceOnes(engine, tensor, stream, first, 2);
    barrier();
    if (rank % 2 == 1) {
      Submission call = OnGpu(Collective::kAllreduce, "x", tensor, &tensor, stream);
      call.process_set = other;
      const auto handle = engine.Submit(std::move(call));
      CHECK(handle.ok());
      const Status outcome = WaitAndRelease(engine, handle.value());
      CHECK(!outcome.ok());
      CHECK_EQ(outcome.error().kind, ErrorKind::kConfig);
      CHECK(outcome.error().message.find("NCCL reduces across hosts for process set " +
                                         std::to_string(first)) != std::string::npos);
    } else {
      ReduceOnes(engine, tensor, stream, first, 2);
    }
    barrier();
    CHECK(engine.RemoveProcessSet(first).ok());
    ReduceOnes(engine, tensor, stream, 0, 4);
  });
}

// Also on another host.
TEST(a_rank_that_fails_leaves_no_kernel_waiting) {
  for (const auto& [hosts, ranks] : {std::pair("", 2), {"2+2", 4}}) {
    const std::string fault = "begin:" + std::to_string(ranks - 1) + ":2:error";
    RunRanks(ranks, With(WithNccl(hosts), {{"fault", fault}}), [ranks](Engine& engine, int rank) {
      const int device = rank % 2;
      void* const stream = fake_cuda_stream(device);
      const Numbers tensor(100000, device);
      tensor.Fill(stream, [](size_t) { return 1; });
      const auto reduce = [&](const char* name) {
        return engine.Submit(
            OnGpu(Collective::kAllreduce, name, tensor, &tensor, stream, 0, device));
      };
      Finish(engine, reduce("x"), stream);
      tensor.Expect(stream, [ranks](size_t) { return ranks; });
      const auto handle = reduce("y");
      const Status outcome = handle.ok() ? WaitAndRelease(engine, handle.value()) : handle.error();
      CHECK(!outcome.ok());
    });
    CHECK(Eventually([] { return fake_cuda_waits() == 0; }));
  }
}

}  // namespace
}  // namespace horoacc::testing
