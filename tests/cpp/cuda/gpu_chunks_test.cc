// CPU-Reduce of tensors that are larger than a chunk, through the whole engine on the fake GPU:
// the host reduces chunks and copies them back while later ones are copied in.
#include <array>
#include <barrier>
#include <chrono>
#include <thread>

#include "fake_cuda/gpu_calls.h"

namespace horoacc::testing {
namespace {

constexpr size_t kChunk = 4096;  // bytes; of 1024 numbers

Pairs Chunked() {
  Pairs settings = InMode("cpu_reduce");
  settings.emplace_back("gpu_chunk_bytes", std::to_string(kChunk));
  settings.emplace_back("last_arriver_bytes", "1000");
  return settings;
}

bool Soon(const std::function<bool()>& condition) {
  const int64_t limit = NowNs() + 60 * kSecond;
  while (!condition()) {
    if (NowNs() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

TEST(every_length_around_chunks_is_reduced_once) {
  for (const int ranks : {1, 2, 3, 4}) {
    RunRanks(ranks, Chunked(), [&](Engine& engine, int rank) {
      void* const stream = fake_cuda_stream(0);
      const auto sum = [ranks](size_t i) { return Value(ranks * (ranks + 1) / 2 - 1, i); };
      for (const size_t count : {1023, 1024, 1025, 2047, 2049, 10 * 1024, 31 * 1024 + 17}) {
        const Numbers input(count);
        const Numbers output(count);
        output.Fill(stream, [](size_t) { return -1; });
        input.Fill(stream, [rank](size_t i) { return Value(rank, i); });
        Finish(engine, engine.Submit(OnGpu(Collective::kAllreduce, "a", input, &output, stream)),
               stream);
        output.Expect(stream, sum);
        input.Expect(stream, [rank](size_t i) { return Value(rank, i); });
        Finish(engine, engine.Submit(OnGpu(Collective::kAllreduce, "b", input, &input, stream)),
               stream);
        input.Expect(stream, sum);
      }
    });
  }
  CHECK_EQ(fake_cuda_unpinned_bytes(), size_t{0});
}

// Chunks and tensors of a bucket end in different places, and ranks copy in different orders.
TEST(buckets_of_many_tensors_flow) {
  constexpr int kTensors = 12;
  RunRanks(3, Chunked(), [&](Engine& engine, int rank) {
    void* const stream = fake_cuda_stream(0);
    for (int step = 0; step < 4; ++step) {
      std::vector<std::unique_ptr<Numbers>> tensors(kTensors);
      std::vector<Result<uint64_t>> handles(kTensors, Error{});
      for (int k = 0; k < kTensors; ++k) {
        const int t = (k * std::array{1, 5, 7}[rank] + step) % kTensors;
        tensors[t] = std::make_unique<Numbers>(t % 3 == 0 ? 5 + t : 700 * t + 3);
        tensors[t]->Fill(stream, [=](size_t i) { return Value(rank, i + step); });
        handles[t] = engine.Submit(OnGpu(Collective::kAllreduce, "t" + std::to_string(t),
                                         *tensors[t], tensors[t].get(), stream));
      }
      for (int t = 0; t < kTensors; ++t) {
        Finish(engine, handles[t], stream);
        tensors[t]->Expect(stream, [=](size_t i) { return Value(5, i + step); });
      }
    }
  });
}

// The last chunk of two ranks is not copied in before all others are reduced and on the GPU again.
TEST(first_chunks_are_back_before_the_rest_is_copied) {
  constexpr int kRanks = 2;
  constexpr size_t kChunks = 20;
  std::barrier together(kRanks);
  RunRanks(kRanks, Chunked(), [&](Engine& engine, int rank) {
    void* const stream = fake_cuda_stream(0);
    const Numbers tensor(kChunks * kChunk / 4);
    tensor.Fill(stream, [rank](size_t i) { return Value(rank, i); });
    fake_cuda_synchronize(stream);
    if (rank == 0) fake_cuda_hold_copies_to_host(kRanks * kChunks - 1);
    together.arrive_and_wait();
    const size_t before = fake_cuda_bytes_to_device();
    together.arrive_and_wait();
    const auto handle = engine.Submit(OnGpu(Collective::kAllreduce, "x", tensor, &tensor, stream));
    CHECK(handle.ok());
    const size_t all_but_one = kRanks * (kChunks - 1) * kChunk;
    CHECK(Soon([&] { return fake_cuda_bytes_to_device() - before == all_but_one; }));
    CHECK(!*engine.Poll(handle.value()));
    together.arrive_and_wait();
    fake_cuda_hold_copies_to_host(-1);
    Finish(engine, handle, stream);
    tensor.Expect(stream, [](size_t i) { return Value(2, i); });
  });
}

// A rank fails while copies are pending in both directions: both ranks get an error, and no copy
// writes afterwards.
TEST(a_failure_in_the_middle_ends_the_call_everywhere) {
  for (const char* when : {"advance:1:1:error", "advance:1:9:error"}) {
    Pairs settings = Chunked();
    settings.emplace_back("fault", when);
    fake_cuda_hold_copies_to_host(60);  // of 80, so that it is in the middle
    RunRanks(2, settings, [](Engine& engine, int) {
      void* const stream = fake_cuda_stream(0);
      const Numbers tensor(40 * 1024);
      tensor.Fill(stream, [](size_t) { return 1; });
      const auto handle =
          engine.Submit(OnGpu(Collective::kAllreduce, "x", tensor, &tensor, stream));
      Status outcome = handle.ok() ? engine.Wait(handle.value(), NowNs() + 60 * kSecond)
                                   : Status(handle.error());
      CHECK(!outcome.ok());
      fake_cuda_hold_copies_to_host(-1);
      if (!handle.ok()) return;
      // No copy is pending behind later work of the stream.
      CHECK(engine.JoinStream(handle.value(), stream).ok());
      engine.Release(handle.value());
      tensor.Fill(stream, [](size_t) { return 7; });
      fake_cuda_synchronize(stream);
      CHECK(Soon([] { return fake_cuda_waits() == 0; }));
      tensor.Expect(stream, [](size_t) { return 7; });
    });
  }
}

TEST(a_lost_gpu_ends_the_job_in_the_middle) {
  RunRanks(2, Chunked(), [](Engine& engine, int) {
    void* const stream = fake_cuda_stream(0);
    const Numbers tensor(20 * 1024);
    tensor.Fill(stream, [](size_t) { return 1; });
    fake_cuda_synchronize(stream);
    fake_cuda_break(1);
    const auto handle = engine.Submit(OnGpu(Collective::kAllreduce, "x", tensor, &tensor, stream));
    const Status outcome = handle.ok() ? WaitAndRelease(engine, handle.value()) : handle.error();
    CHECK(!outcome.ok());
  });
  fake_cuda_break(0);
}

TEST(who_has_joined_gives_zeros_to_what_flows) {
  RunRanks(3, Chunked(), [](Engine& engine, int rank) {
    void* const stream = fake_cuda_stream(0);
    const Numbers tensor(9 * 1024 + 1);
    tensor.Fill(stream, [rank](size_t i) { return Value(rank, i); });
    if (rank != 1) {
      Finish(engine, engine.Submit(OnGpu(Collective::kAllreduce, "x", tensor, &tensor, stream)),
             stream);
      tensor.Expect(stream, [](size_t i) { return Value(3, i); });
    }
    Submission join;
    join.request.collective = Collective::kJoin;
    const auto joined = engine.Submit(std::move(join));
    CHECK(joined.ok());
    CHECK(WaitAndRelease(engine, joined.value()).ok());
  });
}

}  // namespace
}  // namespace horoacc::testing
