// Several buckets of a process set in flight on the fake GPU, through the whole engine: that they
// are, the bits of what they yield, and ranks that fail meanwhile. Processes: tests/fake_gpu.
#include <chrono>
#include <random>
#include <thread>

#include "fake_cuda/gpu_calls.h"

namespace horoacc::testing {
namespace {

struct Case {
  const char* mode;
  int ranks;
};

Pairs Overlapping(const char* mode, const Pairs& more = {}) {
  Pairs settings = With(InMode(mode), more);
  settings.emplace_back("nccl_library", HOST_NCCL);
  settings.emplace_back("fusion_threshold", "65536");  // a slot has 32 KiB
  return settings;
}

/// The GPU of a rank: mode L has one for all.
int DeviceOf(const char* mode, int rank) { return mode == std::string("leader") ? 0 : rank % 2; }

void AwaitCounter(Engine& engine, std::atomic<uint64_t> Counters::* counter, uint64_t least) {
  const int64_t limit = NowNs() + 60 * kSecond;
  while ((engine.counters().*counter).load() < least && NowNs() < limit)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK((engine.counters().*counter).load() >= least);
}

/// Two allreduces, a bucket each.
std::vector<Result<uint64_t>> SubmitBoth(Engine& engine, int rank, int device,
                                         void* const (&streams)[2], const Numbers& first,
                                         const Numbers& second) {
  std::vector<Result<uint64_t>> handles;
  for (const Numbers* tensor : {&first, &second}) {
    void* const stream = streams[handles.size()];
    tensor->Fill(stream, [rank](size_t i) { return Value(rank, i); });
    const std::string name = "x" + std::to_string(handles.size());
    handles.push_back(
        engine.Submit(OnGpu(Collective::kAllreduce, name, *tensor, tensor, stream, 0, device)));
    AwaitCounter(engine, &Counters::decisions, handles.size());  // they are not fused
  }
  return handles;
}

/// On all ranks two buckets, the first of which the last rank's script is not ready for: it cannot
/// be reduced before `go_on` of all ranks has returned, and the second is packed by then.
void HoldTheFirstOfTwo(const char* mode, Engine& engine, int rank, int ranks,
                       std::atomic<int>& through, const std::function<void()>& go_on) {
  const int device = DeviceOf(mode, rank);
  void* const streams[] = {fake_cuda_stream(device), fake_cuda_stream(device)};
  if (rank == ranks - 1) {
    FakeCudaLaunch(streams[0], [&through, ranks] {
      while (through < ranks) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  }
  const Numbers first(5000, device), second(7000, device);
  const auto handles = SubmitBoth(engine, rank, device, streams, first, second);
  AwaitCounter(engine, &Counters::gpu_overlapped_buckets, 1);
  go_on();
  ++through;
  for (size_t k = 0; k < handles.size(); ++k) {
    CHECK(handles[k].ok());
    const Status outcome = engine.Wait(handles[k].value(), NowNs() + 60 * kSecond);
    if (outcome.ok()) CHECK(engine.JoinStream(handles[k].value(), streams[k]).ok());
    engine.Release(handles[k].value());
    // Of a run that ends early the tensors' memory is left alone only once the streams are through.
    if (!outcome.ok()) fake_cuda_synchronize(streams[k]);
    if (outcome.ok())
      (k == 0 ? first : second).Expect(streams[k], [ranks](size_t i) {
        return Value(ranks * (ranks + 1) / 2 - 1, i);
      });
  }
}

TEST(a_bucket_is_packed_while_another_one_waits_to_be_reduced) {
  setenv("FAKE_CUDA_MPS", "1", 1);
  for (const auto [mode, ranks] : {Case{"leader", 2}, Case{"leader", 4}, Case{"stream", 2},
                                   Case{"stream", 3}, Case{"kernel", 2}, Case{"nccl", 2}}) {
    std::atomic<int> through{0};
    RunRanks(ranks, Overlapping(mode), [&](Engine& engine, int rank) {
      HoldTheFirstOfTwo(mode, engine, rank, ranks, through, [] {});
      CHECK_EQ(engine.counters().gpu_overlapped_buckets.load(), 1U);
    });
  }
  unsetenv("FAKE_CUDA_MPS");
}

// What makes the tensors of the second bucket ready is the result of the first.
TEST(tensors_that_are_late_do_not_hold_up_the_bucket_before) {
  setenv("FAKE_CUDA_MPS", "1", 1);
  for (const char* mode : {"leader", "stream", "kernel"}) {
    std::atomic<int> begun{0}, through{0};
    const auto hold = [](void* stream, const std::atomic<int>& until) {
      FakeCudaLaunch(stream, [&until] {
        while (until < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      });
    };
    RunRanks(2, Overlapping(mode), [&](Engine& engine, int rank) {
      const int device = DeviceOf(mode, rank);
      void* const streams[] = {fake_cuda_stream(device), fake_cuda_stream(device)};
      if (rank == 1) hold(streams[0], begun);
      hold(streams[1], through);
      const Numbers first(5000, device), second(7000, device);
      const auto handles = SubmitBoth(engine, rank, device, streams, first, second);
      ++begun;
      Finish(engine, handles[0], streams[0]);
      first.Expect(streams[0], [](size_t i) { return Value(2, i); });
      CHECK_EQ(engine.counters().gpu_overlapped_buckets.load(), 0U);
      ++through;
      Finish(engine, handles[1], streams[1]);
      second.Expect(streams[1], [](size_t i) { return Value(2, i); });
    });
  }
  unsetenv("FAKE_CUDA_MPS");
}

// The third call's decision, which only begins with two in flight, fails on the last rank.
TEST(a_rank_that_fails_with_two_in_flight_leaves_nothing_waiting) {
  for (const auto [mode, ranks] :
       {Case{"leader", 2}, Case{"stream", 2}, Case{"stream", 3}, Case{"kernel", 2}}) {
    setenv("FAKE_CUDA_MPS", "1", 1);
    std::atomic<int> through{0};
    const Pairs fault = {{"fault", "begin:" + std::to_string(ranks - 1) + ":3:error"}};
    RunRanks(ranks, Overlapping(mode, fault), [&](Engine& engine, int rank) {
      HoldTheFirstOfTwo(mode, engine, rank, ranks, through, [&] {
        const Numbers third(10, DeviceOf(mode, rank));
        void* const stream = fake_cuda_stream(DeviceOf(mode, rank));
        third.Fill(stream, [](size_t) { return 1; });
        const auto handle = engine.Submit(
            OnGpu(Collective::kAllreduce, "y", third, &third, stream, 0, DeviceOf(mode, rank)));
        CHECK(!handle.ok() || !WaitAndRelease(engine, handle.value()).ok());
        fake_cuda_synchronize(stream);
      });
    });
    unsetenv("FAKE_CUDA_MPS");
    const int64_t limit = NowNs() + 60 * kSecond;
    while (fake_cuda_waits() > 0 && NowNs() < limit)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK_EQ(fake_cuda_waits(), 0);
  }
}

std::vector<CaseTensor> ManyTensors(uint32_t ranks) {
  std::mt19937 random(7);
  std::vector<CaseTensor> tensors;
  while (tensors.size() < 60) {
    const auto type = static_cast<DType>(random() % kDTypeCount);
    const auto op = static_cast<ReduceOp>(random() % 5);
    CaseTensor tensor{type, op, {}, random() % 3 == 0 ? random() % 40'000 : random() % 3000};
    if (!CheckReducible(type, op).ok() || op == ReduceOp::kAdasum) continue;
    if (op == ReduceOp::kAverage) tensor.scale.divisor = ranks;
    tensors.push_back(tensor);
  }
  return tensors;
}

// All are submitted at once, from two streams, so windows of small buckets and of large ones follow
// each other through the slots. In mode K complex products come between, which take the whole
// buffer.
TEST(many_buckets_in_flight_have_the_bits_of_the_cpu) {
  setenv("FAKE_CUDA_MPS", "1", 1);
  for (const auto [mode, ranks] :
       {Case{"leader", 1}, Case{"leader", 2}, Case{"leader", 3}, Case{"leader", 8},
        Case{"stream", 1}, Case{"stream", 2}, Case{"stream", 4}, Case{"stream", 8},
        Case{"kernel", 1}, Case{"kernel", 2}, Case{"kernel", 3}, Case{"kernel", 4}}) {
    const std::vector<CaseTensor> tensors = ManyTensors(static_cast<uint32_t>(ranks));
    RunRanks(ranks, Overlapping(mode), [&](Engine& engine, int rank) {
      const int device = DeviceOf(mode, rank);
      void* const streams[] = {fake_cuda_stream(device), fake_cuda_stream(device)};
      std::mt19937 random(rank);
      struct Call {
        std::vector<std::byte> input, expected;
        std::unique_ptr<OnDevice> given;
        uint64_t handle = 0;
      };
      std::vector<Call> calls(tensors.size());
      for (size_t t = 0; t < tensors.size(); ++t) {
        const size_t bytes = tensors[t].count * SizeOf(tensors[t].type);
        calls[t].input.resize(bytes);
        calls[t].expected.resize(bytes + 1);
        Fill(random, tensors[t], calls[t].input);
        calls[t].given = std::make_unique<OnDevice>(device, bytes + 1);
        if (bytes > 0) std::memcpy(calls[t].given->host(), calls[t].input.data(), bytes);
        const auto handle =
            engine.Submit(Allreduce("cpu" + std::to_string(t), tensors[t], calls[t].input.data(),
                                    calls[t].expected.data()));
        CHECK(handle.ok() && WaitAndRelease(engine, handle.value()).ok());
      }
      for (size_t t = 0; t < tensors.size(); ++t) {
        void* const data = calls[t].given->data();
        Submission call = Allreduce("gpu" + std::to_string(t), tensors[t], data, data);
        call.device = {device, streams[t % 2]};
        const auto handle = engine.Submit(std::move(call));
        CHECK(handle.ok());
        calls[t].handle = handle.value();
      }
      for (size_t t = 0; t < tensors.size(); ++t) {
        Finish(engine, calls[t].handle, streams[t % 2]);
        fake_cuda_synchronize(streams[t % 2]);
        const size_t bytes = calls[t].input.size();
        if (bytes == 0 || std::memcmp(calls[t].given->host(), calls[t].expected.data(), bytes) == 0)
          continue;
        check::Fail(__FILE__, __LINE__,
                    std::string(NameOf(tensors[t].op)) + " of " + std::to_string(tensors[t].count) +
                        " " + std::string(NameOf(tensors[t].type)) + " by " + mode + " on " +
                        std::to_string(ranks));
      }
      CHECK_EQ(engine.counters().gpu_bytes.load(), 0U);
    });
  }
  unsetenv("FAKE_CUDA_MPS");
}

}  // namespace
}  // namespace horoacc::testing
