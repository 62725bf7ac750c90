// Collectives of a GPU's memory through the whole engine, with a GPU that the host plays: ranks are
// threads, which share it. The host cannot touch its memory, and its streams run late.
#include "fake_cuda/gpu_calls.h"

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <latch>
#include <numeric>

namespace horoacc::testing {
namespace {

// Between hosts the CPU reduces in every mode.
const Pairs kSegment = InMode("cpu_reduce");
const std::vector<Pairs> kModes = {kSegment, With(kSegment, {{"simulated_hosts", "each"}}),
                                   InMode("leader"), InMode("stream")};

TEST(allreduces_wait_for_the_stream_and_the_stream_for_them) {
  for (const Pairs& mode : kModes) {
    for (const int ranks : {1, 2, 3}) {
      RunRanks(ranks, mode, [&](Engine& engine, int) {
        const int rank = engine.placement().rank;
        void* const stream = fake_cuda_stream(0);
        for (const size_t count : {size_t{0}, size_t{1}, size_t{5000}, size_t{700001}}) {
          for (const bool in_place : {true, false}) {
            const Numbers input(count);
            const Numbers other(count);
            const Numbers& output = in_place ? input : other;
            other.Fill(stream, [](size_t) { return -1; });
            input.Fill(stream, [rank](size_t i) { return Value(rank, i); });
            const auto handle = engine.Submit(
                OnGpu(Collective::kAllreduce, in_place ? "a" : "b", input, &output, stream));
            Finish(engine, handle, stream);
            output.Expect(stream,
                          [ranks](size_t i) { return Value(ranks * (ranks + 1) / 2 - 1, i); });
            if (!in_place) input.Expect(stream, [rank](size_t i) { return Value(rank, i); });
          }
        }
      });
    }
  }
  CHECK_EQ(fake_cuda_unpinned_bytes(), size_t{0});
}

void ManyInFlight(const Pairs& settings) {
  constexpr int kTensors = 40;
  RunRanks(3, settings, [&](Engine& engine, int rank) {
    void* const streams[] = {fake_cuda_stream(0), fake_cuda_stream(0)};
    for (int step = 0; step < 3; ++step) {
      std::vector<std::unique_ptr<Numbers>> tensors(kTensors);
      std::vector<Result<uint64_t>> handles(kTensors, Error{});
      for (int k = 0; k < kTensors; ++k) {
        const int t = (k * std::array{1, 3, 7}[rank] + step) % kTensors;
        tensors[t] = std::make_unique<Numbers>(1 + 50 * t);
        void* const stream = streams[t % 2];
        tensors[t]->Fill(stream, [=](size_t i) { return Value(rank, i + step); });
        handles[t] = engine.Submit(OnGpu(Collective::kAllreduce, "t" + std::to_string(t),
                                         *tensors[t], tensors[t].get(), stream));
      }
      for (int t = 0; t < kTensors; ++t) {
        Finish(engine, handles[t], streams[t % 2]);
        tensors[t]->Expect(streams[t % 2], [=](size_t i) { return Value(5, i + step); });
      }
    }
  });
}

TEST(many_in_flight_in_any_order) {
  for (const char* mode : {"cpu_reduce", "leader", "stream"}) ManyInFlight(InMode(mode));
}

TEST(a_name_again_is_behind_what_had_it) {
  RunRanks(2, InMode("auto"), [](Engine& engine, int rank) {
    void* const stream = fake_cuda_stream(0);
    for (int step = 0; step < 20; ++step) {
      const Numbers first(100000);
      first.Fill(stream, [rank](size_t i) { return Value(rank, i); });
      const auto handle =
          engine.Submit(OnGpu(Collective::kAllreduce, "same", first, &first, stream));
      CHECK(handle.ok());
      engine.Release(handle.value());  // it goes on
      const Numbers second(3);
      second.Fill(stream, [rank, step](size_t) { return rank + step; });
      // Shorter: if a rank took it for the first, the ranks would differ.
      Finish(engine, engine.Submit(OnGpu(Collective::kAllreduce, "same", second, &second, stream)),
             stream);
      second.Expect(stream, [step](size_t) { return 1 + 2 * step; });
      fake_cuda_synchronize(stream);
    }
  });
}

TEST(every_collective) {
  for (const Pairs& mode : kModes) {
    constexpr int kRanks = 3;
    RunRanks(kRanks, mode, [](Engine& engine, int rank) {
      void* const stream = fake_cuda_stream(0);
      constexpr size_t kPart = 40000;
      const auto own = [rank](size_t i) { return Value(rank, i); };
      const Numbers part(kPart);
      const Numbers whole(kPart * kRanks);
      part.Fill(stream, own);

      Finish(engine, engine.Submit(OnGpu(Collective::kAllgather, "", part, &whole, stream)),
             stream);
      whole.Expect(stream, [](size_t i) { return Value(i / kPart, i % kPart); });

      for (const int root : {0, 2}) {
        const Numbers moved(kPart);
        moved.Fill(stream, own);
        Finish(engine,
               engine.Submit(OnGpu(Collective::kBroadcast, "", moved, &moved, stream, root)),
               stream);
        moved.Expect(stream, [root](size_t i) { return Value(root, i); });
        const Numbers copy(kPart);
        Finish(engine, engine.Submit(OnGpu(Collective::kBroadcast, "", part, &copy, stream, root)),
               stream);
        copy.Expect(stream, [root](size_t i) { return Value(root, i); });

        const Numbers sum(kPart);
        sum.Fill(stream, [](size_t) { return 7; });
        Finish(engine,
               engine.Submit(OnGpu(Collective::kReduce, "", part, rank == root ? &sum : nullptr,
                                   stream, root)),
               stream);
        sum.Expect(stream, [=](size_t i) { return rank == root ? Value(5, i) : 7; });

        whole.Fill(stream, [](size_t) { return 8; });
        Finish(engine,
               engine.Submit(OnGpu(Collective::kGather, "", part, rank == root ? &whole : nullptr,
                                   stream, root)),
               stream);
        whole.Expect(stream,
                     [=](size_t i) { return rank == root ? Value(i / kPart, i % kPart) : 8; });

        whole.Fill(stream, [root](size_t i) { return Value(root, i); });
        Submission scatter =
            OnGpu(Collective::kScatter, "", part, &copy, stream, root);  // shapes of results
        scatter.buffers[0].input = rank == root ? whole.data() : nullptr;
        Finish(engine, engine.Submit(std::move(scatter)), stream);
        copy.Expect(stream, [=](size_t i) { return Value(root, rank * kPart + i); });
      }

      whole.Fill(stream, own);
      const Numbers taken(kPart * kRanks);
      Finish(engine, engine.Submit(OnGpu(Collective::kAlltoall, "", whole, &taken, stream)),
             stream);
      taken.Expect(stream, [=](size_t i) { return Value(i / kPart, rank * kPart + i % kPart); });

      const Numbers shard(kPart);
      Finish(engine, engine.Submit(OnGpu(Collective::kReducescatter, "", whole, &shard, stream)),
             stream);
      shard.Expect(stream, [=](size_t i) { return Value(5, rank * kPart + i); });

      Submission barrier = OnGpu(Collective::kBarrier, "", part, nullptr, stream);
      barrier.request.tensors.clear();
      barrier.buffers.clear();
      Finish(engine, engine.Submit(std::move(barrier)), stream);
    });
  }
}

TEST(results_that_the_engine_allocates_are_the_hosts) {
  RunRanks(2, kSegment, [](Engine& engine, int rank) {
    const Numbers part(1 + rank);
    part.Fill(nullptr, [rank](size_t) { return rank + 10; });
    const auto handle = engine.Submit(OnGpu(Collective::kAllgather, "", part, nullptr, nullptr));
    CHECK(handle.ok());
    CHECK(engine.Wait(handle.value(), NowNs() + 60 * kSecond).ok());
    const auto* const found =
        reinterpret_cast<const int32_t*>(engine.Find(handle.value())->tensors[0].output);
    CHECK_EQ(found[0], 10);
    CHECK_EQ(found[1], 11);
    CHECK_EQ(found[2], 11);
    engine.Release(handle.value());
  });
}

TEST(ranks_that_differ_in_device_are_told_and_go_on) {
  for (const Pairs& mode : kModes) {
    RunRanks(2, mode, [](Engine& engine, int rank) {
      const Numbers there(10);
      there.Fill(nullptr, [](size_t) { return 1; });
      std::vector<int32_t> here(10);
      const auto handle =
          engine.Submit(rank == 0 ? OnGpu(Collective::kAllreduce, "x", there, &there, nullptr)
                                  : Make(Collective::kAllreduce, "x", DType::kInt32, {10},
                                         here.data(), here.data()));
      CHECK(handle.ok());
      const Status outcome = WaitAndRelease(engine, handle.value());
      CHECK_EQ(outcome.error().kind, ErrorKind::kMismatch);
      CHECK(outcome.error().message.find(
                "mismatched device: rank 0 has a GPU, rank 1 has the CPU") != std::string::npos);
      Finish(engine, engine.Submit(OnGpu(Collective::kAllreduce, "x", there, &there, nullptr)),
             nullptr);
      there.Expect(nullptr, [](size_t) { return 2; });
    });
  }
}

// All ranks get the error of one rank, and the job goes on.
void RefusedOnRank0(const char* why, const std::function<void(Submission&)>& spoil) {
  RunRanks(2, kSegment, [&](Engine& engine, int rank) {
    void* const stream = fake_cuda_stream(0);
    const Numbers tensor(10);
    tensor.Fill(stream, [](size_t) { return 1; });
    Submission call = OnGpu(Collective::kAllreduce, "x", tensor, &tensor, stream);
    if (rank == 0) spoil(call);
    const auto handle = engine.Submit(std::move(call));
    const Status outcome = handle.ok() ? WaitAndRelease(engine, handle.value()) : handle.error();
    CHECK(!outcome.ok());
    CHECK(outcome.error().message.find(why) != std::string::npos);
    CHECK_EQ(outcome.error().kind, rank == 0 ? ErrorKind::kInvalid : ErrorKind::kMismatch);
    Finish(engine, engine.Submit(OnGpu(Collective::kAllreduce, "y", tensor, &tensor, stream)),
           stream);
    tensor.Expect(stream, [](size_t) { return 2; });
  });
}

TEST(what_is_wrong_on_one_rank_is_told_to_all) {
  RefusedOnRank0("no such device", [](Submission& call) { call.device->number = 99; });
  RefusedOnRank0("is being captured", [](Submission& call) {
    call.device->stream = fake_cuda_stream(0);
    fake_cuda_capture(call.device->stream, 1);
  });
}

TEST(nans_are_found_when_the_inputs_are_on_the_host) {
  Pairs settings = kSegment;
  settings.emplace_back("check_numerics", "1");
  RunRanks(2, settings, [](Engine& engine, int rank) {
    const Numbers tensor(10);  // bits of floats
    tensor.Fill(nullptr, [rank](size_t i) { return rank == 1 && i == 3 ? 0x7f800000 : 0; });
    Submission call = OnGpu(Collective::kAllreduce, "x", tensor, &tensor, nullptr);
    call.request.tensors[0].type = DType::kFloat32;
    const auto handle = engine.Submit(std::move(call));
    CHECK(handle.ok());
    const Status outcome = WaitAndRelease(engine, handle.value());
    CHECK(!outcome.ok());
    CHECK(outcome.error().message.find("element 3 of 10 is infinite") != std::string::npos);
  });
}

TEST(without_a_plugin_calls_say_so) {
  RunRanks(1, {{"cuda_plugin", "/nowhere/libhoroacc_cuda.so"}}, [](Engine& engine, int) {
    const Numbers tensor(10);
    const auto handle = engine.Submit(OnGpu(Collective::kAllreduce, "x", tensor, &tensor, nullptr));
    CHECK(!handle.ok());
    CHECK(handle.error().message.find("the CUDA plug-in cannot be loaded") != std::string::npos);
  });
}

void WhoJoins(const Pairs& settings) {
  RunRanks(2, settings, [](Engine& engine, int rank) {
    void* const stream = fake_cuda_stream(0);
    const Numbers tensor(50000);
    tensor.Fill(stream, [](size_t) { return 3; });
    const auto first = engine.Submit(OnGpu(Collective::kAllreduce, "x", tensor, &tensor, stream));
    const Numbers more(10);
    if (rank == 0) {
      more.Fill(stream, [](size_t) { return 4; });
      Finish(engine, engine.Submit(OnGpu(Collective::kAllreduce, "y", more, &more, stream)),
             stream);
      more.Expect(stream, [](size_t) { return 4; });  // and zeros of the rank that has joined
    }
    Submission join;
    join.request.collective = Collective::kJoin;
    const auto joined = engine.Submit(std::move(join));
    CHECK(joined.ok());
    CHECK(WaitAndRelease(engine, joined.value()).ok());
    Finish(engine, first, stream);
    tensor.Expect(stream, [](size_t) { return 6; });
  });
}

TEST(streams_join_behind_pending_copies) {
  for (const char* mode : {"cpu_reduce", "leader", "stream"}) WhoJoins(InMode(mode));
}

TEST(memory_is_used_again) {
  RunRanks(2, kSegment, [](Engine& engine, int) {
    void* const stream = fake_cuda_stream(0);
    const Numbers tensor(300000);
    uint64_t after_first = 0;
    for (int round = 0; round < 12; ++round) {
      tensor.Fill(stream, [](size_t) { return 1; });
      Finish(engine, engine.Submit(OnGpu(Collective::kAllreduce, "x", tensor, &tensor, stream)),
             stream);
      tensor.Expect(stream, [](size_t) { return 2; });
      const uint64_t used = engine.arena()->stats().bytes_in_use;
      if (round == 1) after_first = used;
      if (round > 1) CHECK_EQ(used, after_first);
    }
  });
}

void LoseTheGpu(const Pairs& settings) {
  std::latch good(2);
  RunRanks(2, settings, [&](Engine& engine, int) {
    void* const stream = fake_cuda_stream(0);
    const Numbers tensor(1000);
    tensor.Fill(stream, [](size_t) { return 1; });
    Finish(engine, engine.Submit(OnGpu(Collective::kAllreduce, "x", tensor, &tensor, stream)),
           stream);
    tensor.Expect(stream, [](size_t) { return 2; });
    good.arrive_and_wait();
    fake_cuda_break(1);
    const auto handle = engine.Submit(OnGpu(Collective::kAllreduce, "y", tensor, &tensor, stream));
    CHECK(handle.ok());
    const Status outcome = WaitAndRelease(engine, handle.value());
    CHECK_EQ(outcome.error().kind, ErrorKind::kSystem);
    CHECK(outcome.error().message.find("fallen off the bus") != std::string::npos);
  });
  fake_cuda_break(0);
}

TEST(a_lost_gpu_ends_the_job_on_all_ranks) {
  for (const char* mode : {"cpu_reduce", "leader", "stream"}) LoseTheGpu(InMode(mode));
}

}  // namespace
}  // namespace horoacc::testing
