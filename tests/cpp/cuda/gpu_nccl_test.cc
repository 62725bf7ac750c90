// Mode NCCL through the whole engine, with an NCCL that the host plays on the fake GPU: ranks are
// threads. Processes: tests/fake_gpu.
#include <chrono>
#include <thread>

#include "execute/cuda/nccl/nccl_comm.h"
#include "fake_cuda/gpu_calls.h"

namespace horoacc::testing {
namespace {

Pairs WithNccl(const char* library = HOST_NCCL) {
  Pairs settings = InMode("nccl");
  settings.emplace_back("nccl_library", library);
  settings.emplace_back("fusion_threshold", "65536");  // several windows
  return settings;
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

// If one rank cannot have the mode it is refused on all ranks, and the job goes on.
void RefusedOnAll(const char* why, const std::function<void(Settings&, int)>& change) {
  RunRanks(
      2, WithNccl(),
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
        CHECK_EQ(here[4], 2);
      },
      {}, change);
}

TEST(what_one_rank_cannot_is_refused_on_all) {
  RefusedOnAll("cannot be 'nccl': rank 1 of the process set: NCCL cannot be loaded: /nowhere",
               [](Settings& settings, int rank) {
                 if (rank == 1) settings.nccl_library = "/nowhere/libnccl.so.2";
               });
  // It fails in NCCL's rendezvous, in which the other rank waits.
  for (const char* refusing : {"0", "1"}) {
    ::setenv("HOST_NCCL_REFUSES", refusing, 1);
    const std::string why = "rank " + std::string(refusing) +
                            " of the process set: NCCL: invalid usage: duplicate GPU (host)";
    RefusedOnAll(why.c_str(), [](Settings&, int) {});
  }
  ::unsetenv("HOST_NCCL_REFUSES");
}

TEST(a_rank_that_fails_leaves_no_kernel_waiting) {
  Pairs settings = WithNccl();
  settings.emplace_back("fault", "begin:1:2:error");
  RunRanks(2, settings, [](Engine& engine, int rank) {
    void* const stream = fake_cuda_stream(rank);
    const Numbers tensor(100000, rank);
    tensor.Fill(stream, [](size_t) { return 1; });
    const auto reduce = [&](const char* name) {
      return engine.Submit(OnGpu(Collective::kAllreduce, name, tensor, &tensor, stream, 0, rank));
    };
    Finish(engine, reduce("x"), stream);
    tensor.Expect(stream, [](size_t) { return 2; });
    const auto handle = reduce("y");
    const Status outcome = handle.ok() ? WaitAndRelease(engine, handle.value()) : handle.error();
    CHECK(!outcome.ok());
  });
  const int64_t limit = NowNs() + 60 * kSecond;
  while (fake_cuda_waits() > 0 && NowNs() < limit)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK_EQ(fake_cuda_waits(), 0);
}

}  // namespace
}  // namespace horoacc::testing
