// Communication begins before the last gradient is there, in buckets, and costs no message inside
// a host.
#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <sstream>

#include "support/ranks.h"

namespace horoacc::testing {
namespace {

constexpr int kGradients = 8;
constexpr int64_t kCount = 128 << 10;  // 512 KiB of float32: above what the last arriver does
constexpr const char* kThreshold = "1048576";  // two of them
constexpr int kWarmSteps = 2;

/// Keeps what a rank's engine did.
class Recorder final : public EventSink {
 public:
  struct Seen {
    Phase phase;
    std::string tensor;
    std::string detail;
    uint64_t bucket, value;
  };
  void On(const Event& event) override {
    std::lock_guard lock(mutex_);
    seen_.push_back({event.phase, std::string(event.tensor), std::string(event.detail),
                     event.bucket, event.value});
  }
  void Clear() {
    std::lock_guard lock(mutex_);
    seen_.clear();
  }
  [[nodiscard]] std::vector<Seen> seen(Phase phase) const {
    std::lock_guard lock(mutex_);
    std::vector<Seen> found;
    std::ranges::copy_if(seen_, std::back_inserter(found),
                         [&](const Seen& one) { return one.phase == phase; });
    return found;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Seen> seen_;
};

/// One rank's gradients, in the arena or not.
class Gradients {
 public:
  Gradients(Engine& engine, int64_t count, bool in_arena, std::string prefix = "g")
      : engine_(engine), count_(count), in_arena_(in_arena), prefix_(std::move(prefix)) {
    for (int g = 0; g < kGradients; ++g) {
      own_.emplace_back(in_arena ? 0 : count);
      data_.push_back(in_arena ? static_cast<float*>(engine.AllocateShared(count * sizeof(float)))
                               : own_.back().data());
      std::fill_n(data_.back(), count, 1.0f);
    }
  }
  ~Gradients() {
    for (float* data : data_) {
      if (in_arena_) engine_.FreeShared(data);
    }
  }
  void Queue(int g) {
    auto handle =
        engine_.Submit(Make(Collective::kAllreduce, prefix_ + std::to_string(g), DType::kFloat32,
                            {count_}, data_[g], data_[g], ReduceOp::kAverage));
    CHECK(handle.ok());
    handles_.push_back(handle.value());
  }
  void Wait() {
    for (const uint64_t handle : std::exchange(handles_, {}))
      CHECK(WaitAndRelease(engine_, handle).ok());
    for (const float* data : data_) CHECK_EQ(data[count_ - 1], 1.0f);
  }

 private:
  Engine& engine_;
  const int64_t count_;
  const bool in_arena_;
  const std::string prefix_;
  std::vector<std::vector<float>> own_;
  std::vector<float*> data_;
  std::vector<uint64_t> handles_;
};

// No thread of the framework waits or asks: the first buckets must run while the backward pass,
// which goes on only when they have, is still on its way to the last gradient.
void FirstBucketsRunBeforeTheLastGradient(const Pairs& controller, int64_t count, bool in_arena) {
  RunRanks(2, With(controller, {{"fusion_threshold", std::to_string(2 * count * 4)}}),
           [&](Engine& engine, int) {
             const auto recorder = std::make_shared<Recorder>();
             engine.events().Attach(recorder);
             Gradients gradients(engine, count, in_arena);
             for (int step = 0; step < kWarmSteps + 2; ++step) {
               recorder->Clear();
               for (int g = 0; g < kGradients; ++g) {
                 if (step >= kWarmSteps && g == kGradients - 1) {
                   CHECK(Eventually([&] { return recorder->seen(Phase::kExecuted).size() >= 2; }));
                   CHECK_EQ(recorder->seen(Phase::kQueued).size(), kGradients - 1);
                 }
                 gradients.Queue(g);
               }
               gradients.Wait();
             }
             engine.events().Detach(recorder.get());
           });
}

TEST(first_buckets_run_before_the_last_gradient) {
  for (const Pairs& controller : kControllers) {
    for (const bool in_arena : {false, true}) {
      FirstBucketsRunBeforeTheLastGradient(controller, kCount, in_arena);
    }
  }
}

// Small ones are reduced by the rank that completes the bucket; the news of it may be lazy.
TEST(small_buckets_are_done_before_the_last_gradient) {
  for (const Pairs& controller : kControllers) {
    FirstBucketsRunBeforeTheLastGradient(controller, 1000, true);
  }
}

TEST(buckets_hold_as_much_as_the_threshold_allows) {
  for (const Pairs& controller : kControllers) {
    RunRanks(2, With(controller, {{"fusion_threshold", kThreshold}}),
             [&](Engine& engine, int rank) {
               const auto recorder = std::make_shared<Recorder>();
               engine.events().Attach(recorder);
               Gradients gradients(engine, kCount, true);
               for (int step = 0; step < 4; ++step) {
                 recorder->Clear();
                 for (int g = 0; g < kGradients; ++g)
                   gradients.Queue(rank == 0 ? g : kGradients - 1 - g);
                 gradients.Wait();
                 if (step < kWarmSteps) continue;
                 std::map<uint64_t, std::vector<std::string>> buckets;
                 for (const Recorder::Seen& seen : recorder->seen(Phase::kExecute)) {
                   buckets[seen.bucket].push_back(seen.tensor);
                   CHECK_EQ(seen.value, 1048576);
                   CHECK_EQ(seen.detail, controller.empty() ? "direct_slices" : "canonical");
                 }
                 CHECK_EQ(buckets.size(), kGradients / 2);
                 for (const auto& [number, members] : buckets) {
                   CHECK_EQ(members.size(), 2);
                   const int first = std::stoi(members[0].substr(1));
                   CHECK_EQ(first % 2, 0);
                   CHECK_EQ(members[1], "g" + std::to_string(first + 1));
                 }
               }
               engine.events().Detach(recorder.get());
             });
  }
}

// A bucket runs in two parts if only some of its tensors are shared. The one that is complete first
// must not make the other look as if it had been left alone.
TEST(buckets_of_shared_and_private_memory_stay_whole) {
  for (const Pairs& controller : kControllers) {
    RunRanks(2, controller, [&](Engine& engine, int) {
      Gradients shared(engine, kCount, true);
      Gradients apart(engine, kCount, false, "p");
      for (int step = 0; step < 6; ++step) {
        const uint64_t before = Counter(engine, "buckets");
        for (int g = 0; g < kGradients; ++g) {
          shared.Queue(g);
          apart.Queue(g);
        }
        shared.Wait();
        apart.Wait();
        // Between hosts no memory is shared, and the bucket runs in one part.
        if (step >= kWarmSteps)
          CHECK_EQ(Counter(engine, "buckets") - before, controller.empty() ? 2 : 1);
      }
    });
  }
}

TEST(every_tensor_goes_through_all_phases_in_order) {
  RunRanks(2, {}, [&](Engine& engine, int) {
    const auto recorder = std::make_shared<Recorder>();
    engine.events().Attach(recorder);
    Gradients gradients(engine, kCount, false);
    for (int g = 0; g < kGradients; ++g) gradients.Queue(g);
    gradients.Wait();
    for (const Phase phase : {Phase::kQueued, Phase::kNegotiated, Phase::kExecute, Phase::kExecuted,
                              Phase::kReleased}) {
      CHECK_EQ(recorder->seen(phase).size(), kGradients);
    }
    CHECK(recorder->seen(Phase::kError).empty());
    engine.events().Detach(recorder.get());
  });
}

TEST(control_messages_only_between_hosts) {
  for (const Pairs& controller : kControllers) {
    RunRanks(3, With(controller, {{"fusion_threshold", kThreshold}}), [&](Engine& engine, int) {
      Gradients gradients(engine, 1000, false);
      for (int step = 0; step < 4; ++step) {
        for (int g = 0; g < kGradients; ++g) gradients.Queue(g);
        gradients.Wait();
      }
      CHECK_EQ(Counter(engine, "submissions"), 4 * kGradients);
      if (!controller.empty()) {
        CHECK(Counter(engine, "control_messages") > 0);
        CHECK(Counter(engine, "control_bytes") > 0);
      } else {
        CHECK_EQ(Counter(engine, "control_messages"), 0);
        CHECK_EQ(Counter(engine, "control_bytes"), 0);
      }
    });
  }
}

TEST(bytes_are_counted_by_the_way_they_went) {
  constexpr uint64_t kBytes = kGradients * kCount * sizeof(float);
  RunRanks(2, {}, [&](Engine& engine, int) {
    Gradients gradients(engine, kCount, true);
    for (int g = 0; g < kGradients; ++g) gradients.Queue(g);
    gradients.Wait();
    CHECK_EQ(Counter(engine, "arena_bytes"), kBytes);
    CHECK_EQ(Counter(engine, "staged_bytes"), 0);
    CHECK_EQ(Counter(engine, "window_bytes"), 0);
  });
  RunRanks(2, {}, [&](Engine& engine, int) {
    Gradients gradients(engine, kCount, false);
    for (int g = 0; g < kGradients; ++g) gradients.Queue(g);
    gradients.Wait();
    CHECK_EQ(Counter(engine, "arena_bytes"), 0);
    CHECK_EQ(Counter(engine, "staged_bytes"), 0);
    CHECK_EQ(Counter(engine, "window_bytes"), kBytes);
  });
  RunRanks(2, {{"reduce_path", "staged"}}, [&](Engine& engine, int) {
    Gradients gradients(engine, kCount, false);
    for (int g = 0; g < kGradients; ++g) gradients.Queue(g);
    gradients.Wait();
    CHECK_EQ(Counter(engine, "arena_bytes"), 0);
    CHECK_EQ(Counter(engine, "staged_bytes"), kBytes);
    CHECK_EQ(Counter(engine, "window_bytes"), 0);
  });
}

}  // namespace
}  // namespace horoacc::testing
