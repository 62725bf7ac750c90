// A caller that needs one tensor of a bucket before it submits the others is never held up by the
// bucket, however it waits.
#include <atomic>
#include <chrono>
#include <latch>
#include <limits>
#include <string>
#include <vector>

#include "negotiate/multi_host/multi_host_messages.h"
#include "support/ranks.h"

namespace horoacc::testing {
namespace {

/// A named sum of one number over a process set.
class Sum {
 public:
  Sum(Engine& engine, std::string name, uint32_t process_set = 0)
      : engine_(engine), name_(std::move(name)), process_set_(process_set) {}

  void Submit() {
    value_ = 1;
    Submission submission =
        Make(Collective::kAllreduce, name_, DType::kFloat32, {1}, &value_, &value_);
    submission.process_set = process_set_;
    auto handle = engine_.Submit(std::move(submission));
    CHECK(handle.ok());
    handle_ = handle.value();
  }
  /// Asks again and again; false if there is no result after a long time.
  [[nodiscard]] bool PollAndRelease() {
    const int64_t deadline = NowNs() + 20 * kSecond;
    while (!engine_.Poll(handle_).value()) {
      if (NowNs() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    engine_.Release(handle_);
    return true;
  }
  [[nodiscard]] bool WaitAndRelease() {
    const Status outcome = engine_.Wait(handle_, NowNs() + 20 * kSecond);
    engine_.Release(handle_);
    return outcome.ok();
  }
  [[nodiscard]] float value() const { return value_; }

 private:
  Engine& engine_;
  const std::string name_;
  const uint32_t process_set_;
  float value_ = 0;
  uint64_t handle_ = 0;
};

/// Makes `a` and `b` one bucket.
void Fuse(Sum& a, Sum& b) {
  for (int step = 0; step < 3; ++step) {
    a.Submit();
    b.Submit();
    CHECK(a.WaitAndRelease());
    CHECK(b.WaitAndRelease());
  }
}

TEST(a_caller_that_polls) {
  for (const Pairs& controller : kControllers) {
    RunRanks(2, controller, [&](Engine& engine, int) {
      Sum a(engine, "a");
      Sum b(engine, "b");
      Fuse(a, b);
      for (int step = 0; step < 2; ++step) {
        a.Submit();
        CHECK(a.PollAndRelease());
        CHECK_EQ(a.value(), 2.0f);
        b.Submit();
        CHECK(b.PollAndRelease());
        CHECK_EQ(b.value(), 2.0f);
      }
    });
  }
}

TEST(a_caller_that_waits_for_short_times) {
  for (const Pairs& controller : kControllers) {
    RunRanks(2, controller, [&](Engine& engine, int) {
      Sum b(engine, "b");
      float value = 1;
      for (int step = 0; step < 5; ++step) {
        auto handle =
            engine.Submit(Make(Collective::kAllreduce, "a", DType::kFloat32, {1}, &value, &value));
        if (step < 3) b.Submit();
        const int64_t deadline = NowNs() + 20 * kSecond;
        Status outcome;
        do {
          outcome = engine.Wait(handle.value(), NowNs() + kMillisecond);
          CHECK(NowNs() < deadline);
        } while (!outcome.ok());
        engine.Release(handle.value());
        if (step >= 3) b.Submit();
        CHECK(b.WaitAndRelease());
      }
    });
  }
}

// Nobody waits: there are callbacks only. The coordinator, asleep until then, must look soon.
TEST(a_callback_for_a_part_of_a_bucket) {
  for (const Pairs& controller : kControllers) {
    RunRanks(2, controller, [&](Engine& engine, int) {
      Sum a(engine, "a");
      Sum b(engine, "b");
      int64_t fastest = std::numeric_limits<int64_t>::max();
      for (int turn = 0; turn < 3; ++turn) {
        Fuse(a, b);
        std::this_thread::sleep_for(std::chrono::milliseconds(100));  // it is asleep by now
        float value = 1;
        std::atomic<bool> called{false};
        Submission submission =
            Make(Collective::kAllreduce, "a", DType::kFloat32, {1}, &value, &value);
        submission.done = [&] { called.store(true); };
        const int64_t start = NowNs();
        const uint64_t handle = engine.Submit(std::move(submission)).value();
        while (!called.load() && NowNs() < start + 20 * kSecond)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        CHECK(called.load());
        fastest = std::min(fastest, NowNs() - start);
        engine.Release(handle);
        CHECK_EQ(value, 2.0f);
        b.Submit();
        CHECK(b.WaitAndRelease());
      }
      CHECK(fastest < 500 * kMillisecond);  // a delay of 100 ms, and no sleep of a second
    });
  }
}

// The members are submitted in opposite orders, and each rank waits for its first.
TEST(ranks_that_wait_for_different_members) {
  for (const Pairs& controller : kControllers) {
    RunRanks(3, controller, [&](Engine& engine, int rank) {
      std::vector<Sum> sums;
      for (const char* name : {"a", "b", "c"}) sums.emplace_back(engine, name);
      for (int step = 0; step < 4; ++step) {
        for (Sum& sum : sums) sum.Submit();
        for (Sum& sum : sums) CHECK(sum.WaitAndRelease());
      }
      for (int step = 0; step < 20; ++step) {
        // Everybody submits "a" and one more before waiting for "a".
        Sum& other = sums[1 + (rank + step) % 2];
        Sum& last = sums[2 - (rank + step) % 2];
        sums[0].Submit();
        other.Submit();
        CHECK(sums[0].WaitAndRelease());
        last.Submit();
        CHECK(last.WaitAndRelease());
        CHECK(other.WaitAndRelease());
        for (const Sum& sum : sums) CHECK_EQ(sum.value(), 3.0f);
      }
    });
  }
}

// One thread of a rank waits in one process set and drives the engine, another waits in a second
// set; what the first waits for comes only after what the second waits for.
TEST(threads_that_wait_in_different_process_sets) {
  for (const Pairs& controller : kControllers) {
    std::latch second_threads_are_done(2);
    RunRanks(3, controller, [&](Engine& engine, int rank) {
      const uint32_t pair = engine.AddProcessSet({0, 1}).value();
      Sum x(engine, "x");
      if (rank == 2) {
        second_threads_are_done.wait();
        x.Submit();
        CHECK(x.WaitAndRelease());
        return;
      }
      Sum a(engine, "a", pair);
      Sum b(engine, "b", pair);
      Fuse(a, b);
      x.Submit();
      std::jthread second([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the first one drives by now
        a.Submit();
        const bool came = a.WaitAndRelease();
        second_threads_are_done.count_down();  // so that a failure ends the test
        CHECK(came);
        b.Submit();
        CHECK(b.WaitAndRelease());
      });
      CHECK(x.WaitAndRelease());
    });
  }
}

// Links on which there is always a message: one that asks to split a bucket that does not exist.
class RestlessLinks final : public ControlLinks {
 public:
  explicit RestlessLinks(std::unique_ptr<ControlLinks> links) : links_(std::move(links)) {}
  Status Send(int peer, std::span<const std::byte> bytes) override {
    return links_->Send(peer, bytes);
  }
  Result<std::optional<ControlMessage>> Receive() override {
    noisy_ = !noisy_;
    if (!noisy_) return links_->Receive();
    WireWriter writer;
    writer.Put(uint32_t{0});  // process set
    writer.Put(static_cast<uint8_t>(MultiHostMessage::kSplit));
    writer.Put(kNamedIds);    // bucket
    writer.Put(uint64_t{0});  // decisions that its sender has taken
    Put(writer, CallName{true, "none", 0});
    const auto bytes = writer.bytes();
    return std::optional(ControlMessage{1, {bytes.begin(), bytes.end()}});
  }
  [[nodiscard]] std::vector<int> peers() const override { return links_->peers(); }
  [[nodiscard]] int WaitFd() const override { return links_->WaitFd(); }
  [[nodiscard]] const char* kind() const override { return links_->kind(); }
  [[nodiscard]] uint64_t messages_sent() const override { return links_->messages_sent(); }
  [[nodiscard]] uint64_t bytes_sent() const override { return links_->bytes_sent(); }

 private:
  std::unique_ptr<ControlLinks> links_;
  bool noisy_ = false;
};

// However busy the engine is, a deadline is kept, asking does not block, and stalls end the job.
TEST(a_restless_engine_hides_neither_deadlines_nor_stalls) {
  std::latch done(1);
  RunRanks(
      2,
      {{"simulated_hosts", "each"},
       {"stall_warning_seconds", "0.5"},
       {"stall_shutdown_seconds", "0.5"},
       {"log_level", "fatal"}},
      [&](Engine& engine, int rank) {
        if (rank == 1) {
          done.wait();
          return;
        }
        float value = 1;
        const uint64_t handle =
            engine.Submit(Make(Collective::kAllreduce, "t", DType::kFloat32, {1}, &value, &value))
                .value();
        CHECK(!engine.Poll(handle).value());
        CHECK(engine.Wait(handle, NowNs() + 50 * kMillisecond).error().kind == ErrorKind::kTimeout);
        const Status stalled = engine.Wait(handle, NowNs() + 60 * kSecond);
        CHECK(!stalled.ok());
        CHECK(stalled.error().message.find("was not submitted by rank(s) 1") != std::string::npos);
        done.count_down();
      },
      [](EngineParts& parts, int rank) {
        if (rank == 0) parts.links = std::make_unique<RestlessLinks>(std::move(parts.links));
      });
}

}  // namespace
}  // namespace horoacc::testing
