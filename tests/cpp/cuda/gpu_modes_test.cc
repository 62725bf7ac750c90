// Modes in which GPUs reduce, through the whole engine on the fake GPU: their choice, and ranks
// that fail in the middle. Processes: tests/fake_gpu.
#include <chrono>
#include <cstring>
#include <thread>

#include "execute/cuda/device/cuda_library.h"
#include "execute/cuda/host/bucket.h"
#include "execute/cuda/host/mode_by_size.h"
#include "execute/cuda/host/shares.h"
#include "execute/cuda/persistent/kernel_programs.h"
#include "fake_cuda/gpu_calls.h"

namespace horoacc::testing {
namespace {

ha_cuda_traits Traits(unsigned char gpu, int shares = 1, int stream_words = 1) {
  ha_cuda_traits traits{};
  std::memset(traits.uuid, gpu, sizeof traits.uuid);
  std::snprintf(traits.bus_id, sizeof traits.bus_id, "bus:%d", gpu);
  traits.shares = shares;
  traits.stream_words = stream_words;
  traits.processors = 100;
  return traits;
}

ha_cuda_traits But(ha_cuda_traits traits, int ha_cuda_traits::* what, int value = 1) {
  traits.*what = value;
  return traits;
}

TEST(the_choice_is_the_first_mode_that_all_ranks_can) {
  using Ranks = std::vector<ha_cuda_traits>;
  const auto chosen = [](GpuMode wanted, const Ranks& ranks) {
    const auto mode = cuda::ChooseMode(wanted, ranks);
    CHECK(mode.ok());
    return mode.value();
  };
  const auto refused = [](GpuMode wanted, const Ranks& ranks, const char* why) {
    const auto mode = cuda::ChooseMode(wanted, ranks);
    CHECK(!mode.ok());
    CHECK_EQ(mode.error().kind, ErrorKind::kConfig);
    CHECK(mode.error().message.find(why) != std::string::npos);
  };
  const Ranks one_gpu = {Traits(1), Traits(1), Traits(1)};
  const Ranks two_gpus = {Traits(1), Traits(2)};
  CHECK_EQ(chosen(GpuMode::kAuto, one_gpu), GpuMode::kLeader);
  CHECK_EQ(chosen(GpuMode::kStream, one_gpu), GpuMode::kStream);
  CHECK_EQ(chosen(GpuMode::kCpuReduce, one_gpu), GpuMode::kCpuReduce);
  CHECK_EQ(chosen(GpuMode::kAuto, two_gpus), GpuMode::kStream);
  refused(GpuMode::kLeader, two_gpus,
          "ranks 0 and 1 of the process set have different GPUs (bus:1");
  const Ranks mute = {Traits(1), Traits(2, 1, 0)};
  CHECK_EQ(chosen(GpuMode::kAuto, mute), GpuMode::kCpuReduce);
  refused(GpuMode::kStream, mute, "the GPU of rank 1 of the process set has no memory operations");
  const Ranks closed = {Traits(1, 0), Traits(1)};
  CHECK_EQ(chosen(GpuMode::kAuto, closed), GpuMode::kCpuReduce);
  refused(GpuMode::kLeader, closed, "cannot open memory of the GPU of rank 0");
  CHECK_EQ(chosen(GpuMode::kAuto, {Traits(1, 0, 0)}), GpuMode::kLeader);  // alone
  CHECK_EQ(chosen(GpuMode::kAuto, Ranks(65, Traits(1))), GpuMode::kCpuReduce);
  refused(GpuMode::kLeader, Ranks(65, Traits(1)), "there are 65 ranks");
  // Kernels that wait for each other must all be there.
  CHECK_EQ(chosen(GpuMode::kKernel, two_gpus), GpuMode::kKernel);
  refused(GpuMode::kKernel, one_gpu, "'gpu_mode' cannot be 'kernel': ranks 0 and 1 of the process");
  refused(GpuMode::kKernel, {Traits(1), Traits(2, 0)}, "cannot open memory of the GPU of rank 1");
  refused(GpuMode::kKernel, {Traits(1), But(Traits(2), &ha_cuda_traits::processors, 0)},
          "rank 1 of the process set cannot promise");
  const auto own = [](unsigned char gpu) { return But(Traits(gpu), &ha_cuda_traits::exclusive); };
  CHECK_EQ(chosen(GpuMode::kAuto, {own(1), own(2)}), GpuMode::kKernel);
  CHECK_EQ(chosen(GpuMode::kAuto, {own(1), Traits(2)}), GpuMode::kStream);
  const ha_cuda_traits shared = But(Traits(1), &ha_cuda_traits::concurrent);
  CHECK_EQ(chosen(GpuMode::kKernel, {shared, shared}), GpuMode::kKernel);
  CHECK_EQ(chosen(GpuMode::kAuto, {shared, shared}), GpuMode::kLeader);
  refused(GpuMode::kKernel, Ranks(51, shared), "fewer processors than their kernels need");
  CHECK_EQ(cuda::KernelBlocks(std::vector{Traits(1), Traits(2)}), 32U);
  CHECK_EQ(cuda::KernelBlocks(std::vector{shared, shared, Traits(2), shared}), 16U);
}

TEST(what_was_measured_on_such_gpus_is_chosen_by_size) {
  using cuda::ModeBySize;
  const auto table = schedule::MeasuredTable::Parse(
      "gpu_leader@2:1000=2;gpu_leader@2:100000=2;gpu_leader@2:10000000=2;"
      "gpu_stream@2:1000=3;gpu_stream@2:100000=1.5;gpu_stream@2:10000000=1;"
      "gpu_nccl@2:100000=1;gpu_nccl@2:50=0.1;gpu_stream@1,1:1000=1;gpu_nccl@1,1:1000=0.5");
  CHECK(table.ok());
  CHECK(table.value().Has("gpu_nccl") && !table.value().Has("gpu_kernel"));
  const std::vector<uint32_t> together = {2};
  const std::vector others = {GpuMode::kStream, GpuMode::kNccl};
  ModeBySize modes(GpuMode::kLeader, others, table.value(), together);
  CHECK_EQ(modes.For(0), GpuMode::kLeader);
  CHECK_EQ(modes.For(9999), GpuMode::kLeader);
  CHECK_EQ(modes.For(10000), GpuMode::kNccl);
  CHECK_EQ(modes.For(999999), GpuMode::kNccl);
  CHECK_EQ(modes.For(1000000), GpuMode::kStream);
  CHECK_EQ(modes.For(uint64_t{1} << 40), GpuMode::kStream);
  CHECK(modes.Has(GpuMode::kNccl) && modes.Has(GpuMode::kLeader) && !modes.Has(GpuMode::kKernel));
  modes.Drop(GpuMode::kNccl);
  CHECK_EQ(modes.For(10000), GpuMode::kLeader);
  CHECK(!modes.Has(GpuMode::kNccl));
  // Others are taken only where the usual mode was measured on GPUs like these.
  const std::vector<uint32_t> apart = {1, 1};
  CHECK_EQ(ModeBySize(GpuMode::kStream, others, table.value(), apart).For(1), GpuMode::kNccl);
  CHECK_EQ(ModeBySize(GpuMode::kLeader, others, table.value(), apart).For(1), GpuMode::kLeader);
  CHECK(cuda::RanksOfGpus(std::vector{Traits(1), Traits(2), Traits(1)}) ==
        (std::vector<uint32_t>{2, 1}));
  CHECK(!schedule::MeasuredTable::Parse("leader@2:1000=2").ok());
}

TEST(a_bucket_is_cut_into_windows_that_hold_all_of_it_once) {
  constexpr size_t kBuffer = 8192;
  std::vector<cuda::BucketTensor> tensors;
  const auto add = [&](uint64_t count, DType type, ReduceOp op = ReduceOp::kSum) {
    tensors.push_back({.count = count, .type = type, .op = op});
  };
  add(7, DType::kUInt8);
  add(0, DType::kFloat64);
  add(5000, DType::kFloat32);
  add(3, DType::kFloat32);
  add(3, DType::kFloat32, ReduceOp::kMax);
  add(2100, DType::kFloat64);
  const auto windows = cuda::CutBucket(tensors, kBuffer);
  std::vector<uint64_t> moved(tensors.size());
  for (const cuda::BucketWindow& window : windows) {
    uint64_t end = 0;
    for (const cuda::BucketPart& part : window.parts) {
      CHECK_EQ(part.first_byte, moved[part.tensor]);  // in order, without a gap
      CHECK(part.bytes > 0 && part.offset >= end && part.offset + part.bytes <= kBuffer);
      CHECK_EQ(part.offset % 16, uint64_t{0});  // the widest access of a GPU's thread
      end = part.offset + part.bytes;
      moved[part.tensor] += part.bytes;
      // Exactly one run has it, with the tensor's type and operation.
      int runs = 0;
      for (const cuda::BucketRun& run : window.runs) {
        const uint64_t run_end = run.offset + run.count * SizeOf(run.type);
        if (part.offset < run.offset || part.offset + part.bytes > run_end) continue;
        ++runs;
        CHECK_EQ(run.type, tensors[part.tensor].type);
        CHECK_EQ(run.op, tensors[part.tensor].op);
        CHECK_EQ((part.offset - run.offset) % SizeOf(run.type), size_t{0});
      }
      CHECK_EQ(runs, 1);
    }
  }
  for (size_t t = 0; t < tensors.size(); ++t)
    CHECK_EQ(moved[t], tensors[t].count * SizeOf(tensors[t].type));
  CHECK_EQ(windows.size(), size_t{5});  // of 36.8 KB
  CHECK_EQ(
      cuda::CutBucket({{.count = 100, .type = DType::kInt8}, {.count = 50, .type = DType::kInt8}},
                      kBuffer)[0]
          .runs.size(),
      size_t{1});  // of one kind: one launch
}

// A rank fails while the other's stream, or its kernel, waits for it: nothing stays stuck.
void LeaveNothingWaiting(const char* mode) {
  Pairs settings = InMode(mode);
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
  while (fake_cuda_waits() > 0 && NowNs() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK_EQ(fake_cuda_waits(), 0);
}

TEST(a_rank_that_fails_leaves_no_stream_waiting) { LeaveNothingWaiting("stream"); }
TEST(a_rank_that_fails_leaves_no_kernel_waiting) { LeaveNothingWaiting("kernel"); }

/// Allreduces of such lengths, one after the other, on two ranks with a GPU each.
void ReduceByKernels(Engine& engine, int rank, const std::vector<size_t>& counts) {
  void* const stream = fake_cuda_stream(rank);
  uint64_t bytes = 0;
  for (const size_t count : counts) {
    const Numbers tensor(count, rank);
    tensor.Fill(stream, [rank](size_t i) { return Value(rank, i); });
    Finish(engine,
           engine.Submit(OnGpu(Collective::kAllreduce, "x" + std::to_string(count), tensor, &tensor,
                               stream, 0, rank)),
           stream);
    tensor.Expect(stream, [](size_t i) { return Value(2, i); });
    bytes += 4 * count;
  }
  CHECK_EQ(engine.counters().gpu_kernel_bytes.load(), bytes);
}

// The others free their memory once all ranks have closed it.
TEST(what_a_stream_still_uses_is_not_said_to_be_closed) {
  const auto plugin = cuda::LoadCudaPlugin({.driver = "", .plugin = FAKE_CUDA});
  CHECK(plugin.ok());
  const auto gpu = cuda::Gpu::Open(*plugin.value(), 0);
  CHECK(gpu.ok());
  struct alignas(4096) Page {
    cuda::GpuPeerWords words[4096 / sizeof(cuda::GpuPeerWords)];
  };
  const auto page = std::make_unique<Page>();
  cuda::GpuPeerInfo infos[2];
  cuda::Shares shares(gpu.value(), {infos, page->words, 2}, 0, {false, false},
                      [](uint32_t) { return false; });
  CHECK(shares.Offer(4096, true).ok());
  CHECK(shares.PinWords().ok());
  auto* const word = reinterpret_cast<uint32_t*>(&page->words[1].packed[0]);
  void* const stream = shares.reducing_stream();
  CHECK(gpu.value()->Call(&ha_cuda_plugin::await_words, stream, &word, size_t{1}, 1U).ok());
  shares.Close();
  CHECK_EQ(infos[0].closed.load(), 0U);
  page->words[1].packed[0].store(1);
  shares.Close();
  CHECK_EQ(infos[0].closed.load(), 1U);
}

// One-shot, two-shot and direct, and the same again: calls of one program.
TEST(kernels_reduce_messages_of_every_size) {
  RunRanks(2, InMode("kernel"), [](Engine& engine, int rank) {
    ReduceByKernels(engine, rank, {1, 3000, 4096, 5000, 262144, 262145, 500001, 3000, 262145});
  });
}

TEST(kernels_interpret_the_schedule_that_is_ordered) {
  for (const char* algorithm : {"ring", "double_tree"}) {
    Pairs settings = InMode("kernel");
    settings.emplace_back("algorithm", algorithm);
    RunRanks(2, settings, [](Engine& engine, int rank) {
      ReduceByKernels(engine, rank, {1, 5000, 300001, 5000});
    });
  }
}

TEST(an_algorithm_with_more_lanes_than_blocks_is_refused) {
  cuda::KernelRules rules{.ranks = 2, .blocks = 1, .bytes = 4 << 20, .algorithm = "double_tree"};
  const Status status = cuda::KernelPrograms(rules).Check();
  CHECK_EQ(status.error().kind, ErrorKind::kConfig);
  CHECK(status.error().message.find("lanes, and a rank 1 blocks") != std::string::npos);
  rules.blocks = 8;
  CHECK(cuda::KernelPrograms(rules).Check().ok());
}

// More programs than there is memory for: it is cleared in between, on all ranks at once.
TEST(memory_of_kernels_is_used_again) {
  Pairs settings = InMode("kernel");
  settings.emplace_back("fusion_threshold", "65536");
  RunRanks(2, settings, [](Engine& engine, int rank) {
    std::vector<size_t> counts;
    for (size_t k = 0; k < 24; ++k) counts.push_back(16000 - 7 * k);
    counts.push_back(100003);  // several windows, of one program and another
    ReduceByKernels(engine, rank, counts);
  });
}

// One tensor after the other goes through a small buffer, in windows that end in its middle.
TEST(buckets_are_larger_than_the_buffer) {
  for (const char* mode : {"leader", "stream"}) {
    Pairs settings = InMode(mode);
    settings.emplace_back("fusion_threshold", "65536");
    RunRanks(3, settings, [](Engine& engine, int rank) {
      void* const stream = fake_cuda_stream(0);
      std::vector<std::unique_ptr<Numbers>> tensors;
      Submission group =
          Make(Collective::kAllreduce, "group_1of3", DType::kInt32, {}, nullptr, nullptr);
      group.grouped = true;
      group.device = {0, stream};
      group.request.tensors.clear();
      group.buffers.clear();
      for (const size_t count : {size_t{100}, size_t{50001}, size_t{20003}}) {
        tensors.push_back(std::make_unique<Numbers>(count));
        tensors.back()->Fill(stream, [rank](size_t i) { return Value(rank, i); });
        group.request.tensors.push_back({DType::kInt32, tensors.back()->shape()});
        group.buffers.push_back({tensors.back()->data(), tensors.back()->data()});
      }
      Finish(engine, engine.Submit(std::move(group)), stream);
      for (const auto& tensor : tensors)
        tensor->Expect(stream, [](size_t i) { return Value(5, i); });
    });
  }
}

// Only one of the ranks cannot open K, the first choice on GPUs of their own: all take S.
TEST(auto_goes_on_to_the_next_mode_on_all_ranks) {
  for (const char* mode : {"auto", "kernel"}) {
    setenv("FAKE_CUDA_EXCLUSIVE", "1", 1);
    setenv("FAKE_CUDA_NO_ZERO", "1", 1);
    RunRanks(2, InMode(mode), [mode](Engine& engine, int rank) {
      void* const stream = fake_cuda_stream(rank);
      const Numbers tensor(30000, rank);
      tensor.Fill(stream, [rank](size_t i) { return Value(rank, i); });
      const auto handle =
          engine.Submit(OnGpu(Collective::kAllreduce, "x", tensor, &tensor, stream, 0, rank));
      if (mode == std::string("kernel")) {
        const Status outcome = WaitAndRelease(engine, handle.value());
        CHECK(outcome.error().message.find("rank 1 of the process set: GPU 1: no memset") !=
              std::string::npos);
        return;
      }
      Finish(engine, handle, stream);
      tensor.Expect(stream, [](size_t i) { return Value(2, i); });
      CHECK_EQ(engine.counters().gpu_stream_bytes.load(), 120000U);
      CHECK_EQ(engine.counters().gpu_kernel_bytes.load(), 0U);
    });
    unsetenv("FAKE_CUDA_EXCLUSIVE");
    unsetenv("FAKE_CUDA_NO_ZERO");
  }
}

// A GPU for each rank, then the other's: that is no GPU group's, and the CPU reduces.
TEST(modes_depend_on_where_the_ranks_tensors_are) {
  RunRanks(2, InMode("auto"), [](Engine& engine, int rank) {
    for (const int device : {rank, rank, 1 - rank, rank}) {
      void* const stream = fake_cuda_stream(device);
      const Numbers tensor(30000, device);
      tensor.Fill(stream, [rank](size_t i) { return Value(rank, i); });
      const auto before = engine.counters().gpu_stream_bytes.load();
      Finish(engine,
             engine.Submit(OnGpu(Collective::kAllreduce, "x" + std::to_string(device == rank),
                                 tensor, &tensor, stream, 0, device)),
             stream);
      tensor.Expect(stream, [](size_t i) { return Value(2, i); });
      CHECK_EQ(engine.counters().gpu_stream_bytes.load() - before, device == rank ? 120000U : 0U);
    }
  });
}

// A rank that gives no memory for the result gets it from memory of the engine's, once or in parts.
TEST(an_exchange_makes_results_on_the_gpu_where_no_memory_is_given) {
  RunRanks(2, InMode("stream"), [](Engine& engine, int rank) {
    void* const stream = fake_cuda_stream(0);
    constexpr size_t kCount = 20000;
    const Numbers input(kCount);
    const Numbers output(2 * kCount);
    for (int turn = 0; turn < 4; ++turn) {
      input.Fill(stream, [rank, turn](size_t i) { return Value(rank + turn, i); });
      const bool given = rank == 0 || turn % 2 == 1;
      const auto handle = engine.Submit(
          OnGpu(Collective::kAllgather, "x", input, given ? &output : nullptr, stream));
      if (!given) {
        CHECK(handle.ok() && engine.Wait(handle.value(), NowNs() + 60 * kSecond).ok());
        CHECK(engine.JoinStream(handle.value(), stream).ok());
        const std::shared_ptr<Entry> entry = engine.Find(handle.value());
        cuda::DeviceCall& call = *AsCollective(entry.get())->device;
        CHECK(call.has_result(0) && !call.has_result(1));
        constexpr size_t kFirst = 4 * 7001;
        CHECK(call.CopyResult(0, 0, kFirst, output.data(), stream).ok());
        CHECK(call.CopyResult(0, kFirst, 8 * kCount - kFirst, output.data() + 7001, stream).ok());
      }
      Finish(engine, handle, stream);
      const auto wanted = [turn](size_t i) {
        return Value(static_cast<int>(i / kCount) + turn, i % kCount);
      };
      output.Expect(stream, wanted);
      CHECK_EQ(engine.counters().gpu_moved_bytes.load(), (turn + 1) * kCount * 4);
    }
  });
}

TEST(a_mode_that_is_impossible_is_refused_on_all_ranks) {
  struct Case {
    const char* mode;
    bool a_gpu_each;
    const char* why;
  };
  for (const Case& one :
       {Case{"leader", true, "have different GPUs"}, Case{"kernel", false, "without MPS"}}) {
    RunRanks(2, InMode(one.mode), [one](Engine& engine, int me) {
      const int rank = one.a_gpu_each ? me : 0;
      void* const stream = fake_cuda_stream(rank);
      const Numbers tensor(10, rank);
      for (int turn = 0; turn < 2; ++turn) {
        const auto handle =
            engine.Submit(OnGpu(Collective::kAllreduce, "x", tensor, &tensor, stream, 0, rank));
        CHECK(handle.ok());
        const Status outcome = WaitAndRelease(engine, handle.value());
        CHECK_EQ(outcome.error().kind, ErrorKind::kConfig);
        CHECK(outcome.error().message.find(one.why) != std::string::npos);
      }
      std::vector<int32_t> here(10, 1);
      const auto handle = engine.Submit(
          Make(Collective::kAllreduce, "y", DType::kInt32, {10}, here.data(), here.data()));
      CHECK(WaitAndRelease(engine, handle.value()).ok());
      CHECK_EQ(here[0], 2);
    });
  }
}

}  // namespace
}  // namespace horoacc::testing
