// The control segment's lock, whose owner may die, and the abort word of a set.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "support/forked_ranks.h"
#include "support/ranks.h"
#include "support/segment_views.h"

namespace horoacc::testing {
namespace {

TEST(the_lock_excludes) {
  constexpr int kRanks = 3;
  constexpr int kTurns = 2000;
  const SegmentViews controls(kRanks);
  int64_t counted = 0;  // not atomic: the lock is what makes this right
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        for (int turn = 0; turn < kTurns; ++turn) {
          const SetSegment::Guard guard(controls.control(rank));
          CHECK(guard.status().ok());
          ++counted;
        }
      });
    }
  }
  CHECK_EQ(counted, kRanks * kTurns);
}

/// A process that takes rank 1's lock and never gives it back.
class LockHolder {
 public:
  explicit LockHolder(const SegmentViews& controls) {
    CHECK_EQ(::pipe(taken_), 0);
    process_.emplace([&] {
      const SetSegment::Guard guard(controls.control(1));
      const char yes = guard.status().ok() ? 'y' : 'n';
      if (::write(taken_[1], &yes, 1) != 1) return 1;
      ::pause();
      return 0;
    });
    char answer = 0;
    CHECK_EQ(::read(taken_[0], &answer, 1), 1);
    CHECK_EQ(answer, 'y');
  }
  ~LockHolder() {
    ::close(taken_[0]);
    ::close(taken_[1]);
  }
  void Die() {
    process_->Kill();
    CHECK_EQ(process_->Await(NowNs() + 30 * kSecond), 1000 + SIGKILL);
    dead_.store(true);
  }
  [[nodiscard]] bool alive() const { return !dead_.load(); }

 private:
  int taken_[2] = {-1, -1};
  std::optional<ForkedRank> process_;
  std::atomic<bool> dead_{false};
};

TEST(the_death_of_a_locks_owner_is_noticed) {
  LockHolder* holder = nullptr;
  const SegmentViews controls(2, {}, [&](uint32_t rank) { return rank != 1 || holder->alive(); });
  LockHolder process(controls);
  holder = &process;
  // Dies while rank 0 waits for the lock already.
  std::jthread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    process.Die();
  });
  const int64_t start = NowNs();
  {
    const SetSegment::Guard guard(controls.control(0));
    CHECK(!guard.status().ok());
    CHECK(guard.status().error().kind == ErrorKind::kPeerLost);
    CHECK_EQ(guard.status().error().culprit, 1);  // the error names the rank
  }
  CHECK(NowNs() - start < 20 * kSecond);
  // What the dead rank left half done stays closed.
  auto lookup = controls.control(0).Lookup("x");
  CHECK(!lookup.ok());
  CHECK(lookup.error().kind == ErrorKind::kPeerLost);
}

TEST(an_abort_ends_the_wait_for_the_lock) {
  const SegmentViews controls(2);
  LockHolder process(controls);
  std::jthread aborter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    CHECK(controls[1].host.Abort(MakeError(ErrorKind::kTimeout, "enough", 1)));
  });
  const SetSegment::Guard guard(controls.control(0));
  CHECK(!guard.status().ok());
  CHECK(guard.status().error().kind == ErrorKind::kTimeout);
  CHECK_EQ(guard.status().error().message, "enough");
  CHECK_EQ(guard.status().error().culprit, 1);
}

TEST(the_first_abort_stays) {
  const SegmentViews controls(2);
  CHECK(controls[0].host.aborted().kind == ErrorKind::kOk);
  CHECK(controls[1].host.Abort(MakeError(ErrorKind::kPeerLost, "rank 7 died", 7)));
  CHECK(!controls[0].host.Abort(MakeError(ErrorKind::kTimeout, "late", 0)));
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(controls[rank].host.aborted().kind == ErrorKind::kPeerLost);
    CHECK_EQ(controls[rank].host.aborted().message, "rank 7 died");
    CHECK_EQ(controls[rank].host.aborted().culprit, 7);
  }
}

TEST(the_ends_of_a_set_are_told_apart) {
  const SetEnd none;
  const SetEnd removed = SetEnd::Removed();
  CHECK(!none && removed && removed.removed() && !removed.gave_up());
  for (const int rank : {0, 1, 7, 100000}) {
    const SetEnd left = SetEnd::Left(rank);
    const SetEnd gave_up = SetEnd::GaveUp(rank);
    CHECK(left && !left.removed() && !left.gave_up());
    CHECK(gave_up && !gave_up.removed() && gave_up.gave_up());
    CHECK_EQ(left.rank(), rank);
    CHECK_EQ(gave_up.rank(), rank);
  }
  for (const SetEnd end : {none, removed, SetEnd::Left(3), SetEnd::GaveUp(3)})
    CHECK(SetEnd::FromWire(end.wire()) == end);
}

TEST(an_abort_without_a_culprit_and_with_a_long_text) {
  const SegmentViews controls(1);
  CHECK(controls[0].host.Abort(MakeError(ErrorKind::kSystem, std::string(5000, 'x'))));
  CHECK_EQ(controls[0].host.aborted().culprit, -1);
  CHECK_EQ(controls[0].host.aborted().message, std::string(sizeof HostHeader::abort_text - 1, 'x'));
}

}  // namespace
}  // namespace horoacc::testing
