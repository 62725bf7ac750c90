// What the others get when a rank is killed: idle, waiting, in the middle of a collective.
#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "support/process_jobs.h"

namespace horoacc::testing {
namespace {

/// How long the others may take to hear of a death, and to end. Far less than a call waits, far
/// more than it takes: the machine may be busy.
constexpr int64_t kNoticeLimit = 15 * kSecond;
constexpr size_t kBig = 4 << 20;  ///< float32 numbers: 16 MiB, many windows

/// What a survivor must be told, and that its engine still comes to an end.
int CheckTold(OwnedEngine engine, Call& call, int victim, int64_t killed_ns) {
  const int code = call.Wait();
  if (code != HA_PEER_LOST) {
    check::Fail(__FILE__, __LINE__,
                "expected a lost peer, got " + std::to_string(code) + ": " + call.error().message);
  }
  if (killed_ns > 0) CHECK(NowNs() - killed_ns < kNoticeLimit);
  CHECK_EQ(call.error().culprit, victim);
  CHECK(Contains(call.error().message, "rank " + std::to_string(victim)));
  // From now on every call fails at once with the same error.
  float value = 1;
  const int64_t start = NowNs();
  Call next(engine.get(), "next", &value, 1);
  CHECK_EQ(next.Wait(), HA_PEER_LOST);
  CHECK_EQ(next.error().culprit, victim);
  CHECK(NowNs() - start < kNoticeLimit);
  CHECK_EQ(ha_engine_shutdown(engine.get(), nullptr), HA_OK);
  return 0;
}

void KilledIdle(int size, int victim, const Pairs& settings) {
  Job job(size);
  job.Start([&](int rank) {
    OwnedEngine engine = job.Engine(rank, settings);
    CheckAllreduce(engine.get(), size);
    job.Reached();
    const int64_t killed_ns = job.AwaitLetGo();
    float value = 1;
    Call call(engine.get(), "after", &value, 1);
    return CheckTold(std::move(engine), call, victim, killed_ns);
  });
  job.AwaitReached(size);
  job.Kill(victim);
  job.LetGo();
  job.CheckEnds({victim});
}

void KilledWhileOthersWait(int size, int victim, const Pairs& settings) {
  Job job(size);
  job.Start([&](int rank) {
    OwnedEngine engine = job.Engine(rank, settings);
    CheckAllreduce(engine.get(), size);
    job.Reached();
    if (rank == victim) return ::pause();
    float value = 1;
    Call call(engine.get(), "waits", &value, 1);
    return CheckTold(std::move(engine), call, victim, 0);
  });
  job.AwaitReached(size);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // now they sleep
  const int64_t killed_ns = NowNs();
  job.Kill(victim);
  job.CheckEnds({victim});
  CHECK(NowNs() - killed_ns < kNoticeLimit);
}

void KilledInBigCollectives(int size, int victim, const Pairs& settings, bool in_arena) {
  Job job(size);
  job.Start([&](int rank) {
    OwnedEngine engine = job.Engine(rank, settings);
    std::vector<float> own(in_arena ? 0 : kBig, 1.0f);
    float* data = own.data();
    if (in_arena) {
      data = static_cast<float*>(ha_arena_allocate(engine.get(), kBig * sizeof(float)));
      std::fill_n(data, kBig, 1.0f);
    }
    for (int round = 0;; ++round) {
      if (round == 2) job.Reached();
      Call call(engine.get(), "big", data, kBig);
      if (rank == victim) {
        CHECK_EQ(call.Wait(), HA_OK);
        continue;
      }
      if (call.Wait() != HA_OK) return CheckTold(std::move(engine), call, victim, 0);
    }
  });
  job.AwaitReached(size);
  const int64_t killed_ns = NowNs();
  job.Kill(victim);
  job.CheckEnds({victim});
  CHECK(NowNs() - killed_ns < kNoticeLimit);
}

TEST(a_rank_killed_idle) {
  KilledIdle(2, 1, kSegment);
  KilledIdle(4, 2, kSegment);
  KilledIdle(4, 0, kMessages);
}

TEST(a_rank_killed_while_the_others_wait) {
  KilledWhileOthersWait(2, 0, kSegment);
  KilledWhileOthersWait(4, 3, kSegment);
  KilledWhileOthersWait(4, 1, kMessages);
}

TEST(a_rank_killed_in_big_windows) {
  KilledInBigCollectives(2, 1, kSegment, false);
  KilledInBigCollectives(4, 2, kSegment, false);
  KilledInBigCollectives(4, 0, kMessages, false);
}

TEST(a_rank_killed_in_big_slices) {
  KilledInBigCollectives(2, 0, kSegment, true);
  KilledInBigCollectives(4, 3, kSegment, true);
}

// Two at once, so that the survivors do not agree on who it was; each must still be told.
TEST(two_ranks_killed_at_once) {
  constexpr int kSize = 4;
  Job job(kSize);
  job.Start([&](int rank) {
    const OwnedEngine engine = job.Engine(rank, kSegment);
    CheckAllreduce(engine.get(), kSize);
    job.Reached();
    if (rank % 2) return ::pause();
    float value = 1;
    Call call(engine.get(), "waits", &value, 1);
    CHECK_EQ(call.Wait(), HA_PEER_LOST);
    CHECK_EQ(call.error().culprit % 2, 1);
    return 0;
  });
  job.AwaitReached(kSize);
  job.Kill(1);
  job.Kill(3);
  job.CheckEnds({1, 3});
}

}  // namespace
}  // namespace horoacc::testing
