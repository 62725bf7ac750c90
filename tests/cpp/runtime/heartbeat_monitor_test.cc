// Who is told to be silent, and when; what else a rank's page says.
#include "runtime/health/heartbeat_monitor.h"

#include <signal.h>

#include "base/clock.h"
#include "runtime/health/process_state.h"
#include "support/check.h"
#include "support/forked_ranks.h"
#include "support/ranks.h"

namespace horoacc {
namespace {

using News = HeartbeatMonitor::News;
constexpr HeartbeatMonitor::Limits kLimits{5 * kSecond, 10 * kSecond};

TEST(a_peer_that_beats_is_never_told_of) {
  HeartbeatMonitor heartbeats(1, kLimits);
  for (int64_t second = 1; second < 100; ++second) {
    heartbeats.Begin(second * kSecond);
    CHECK(heartbeats.See(0, second * kSecond - kSecond / 2) == News::kNone);
    CHECK(!heartbeats.doubtful());
  }
}

TEST(a_silence_is_told_once_then_its_end_or_the_hang) {
  HeartbeatMonitor heartbeats(2, kLimits);
  for (int64_t second = 1; second <= 8; ++second) {
    heartbeats.Begin(second * kSecond);
    const News news = heartbeats.See(0, kSecond);
    CHECK((second == 7) == (news == News::kSilent));
    CHECK_EQ(heartbeats.doubtful(), second > 2);
    CHECK(heartbeats.See(1, second * kSecond) == News::kNone);
  }
  heartbeats.Begin(9 * kSecond);
  CHECK(heartbeats.See(0, 9 * kSecond) == News::kBack);
  for (int64_t second = 10; second <= 19; ++second) {
    heartbeats.Begin(second * kSecond);
    CHECK((second == 15) == (heartbeats.See(0, 9 * kSecond) == News::kSilent));
  }
  heartbeats.Begin(20 * kSecond);
  CHECK(heartbeats.See(0, 9 * kSecond) == News::kHangs);
}

TEST(a_short_limit_makes_signs_frequent) {
  CHECK_EQ(HeartbeatMonitor(1, kLimits).beat_every_ns(), kSecond);
  CHECK_EQ(HeartbeatMonitor(1, {}).beat_every_ns(), kSecond);
  CHECK_EQ(HeartbeatMonitor(1, {kSecond, 600 * kSecond}).beat_every_ns(), kSecond / 4);
  CHECK_EQ(HeartbeatMonitor(1, {5 * kSecond, 2 * kSecond}).beat_every_ns(), kSecond / 2);
}

TEST(who_looks_too_seldom_tells_of_nobody) {
  HeartbeatMonitor heartbeats(1, {kSecond, 0});
  // As if what looks did not get the processor: each sign is long past by then.
  for (int64_t second = 1; second < 20; ++second) {
    heartbeats.Begin(second * kSecond);
    CHECK(heartbeats.See(0, second * kSecond - kSecond / 2) == News::kNone);
  }
  // Nor of who has been silent as long as it did so.
  for (int64_t second = 20; second < 40; ++second) {
    heartbeats.Begin(second * kSecond);
    CHECK(heartbeats.See(0, 19 * kSecond) == News::kNone);
  }
}

TEST(a_rank_that_was_stopped_itself_reports_no_peer) {
  HeartbeatMonitor heartbeats(1, kLimits);
  heartbeats.Begin(kSecond);
  CHECK(heartbeats.See(0, kSecond) == News::kNone);
  heartbeats.Begin(1000 * kSecond);
  CHECK(heartbeats.See(0, kSecond) == News::kNone);
  CHECK(heartbeats.silent_ns(0) < kSecond);
}

TEST(a_rank_that_was_stopped_past_a_short_limit_reports_no_peer) {
  HeartbeatMonitor heartbeats(1, {0, kSecond});
  heartbeats.Begin(kSecond);
  CHECK(heartbeats.See(0, kSecond) == News::kNone);
  heartbeats.Begin(5 * kSecond / 2);
  CHECK(heartbeats.See(0, kSecond) == News::kNone);
  // From then on it looks at every beat.
  for (int look = 1; look <= 4; ++look) {
    heartbeats.Begin(5 * kSecond / 2 + look * heartbeats.beat_every_ns());
    CHECK(heartbeats.See(0, kSecond) == News::kNone);
  }
  heartbeats.Begin(15 * kSecond / 4);
  CHECK(heartbeats.See(0, kSecond) == News::kHangs);
}

TEST(another_clock_does_not_matter) {
  HeartbeatMonitor heartbeats(2, kLimits);
  for (int64_t second = 1; second < 20; ++second) {
    heartbeats.Begin(second * kSecond);
    CHECK(heartbeats.See(0, second) == News::kNone);                     // far behind
    CHECK(heartbeats.See(1, (second + 1000) * kSecond) == News::kNone);  // far ahead
  }
}

TEST(nothing_is_told_without_limits) {
  HeartbeatMonitor heartbeats(1, {});
  for (int64_t second = 1; second < 1000; ++second) {
    heartbeats.Begin(second * kSecond);
    CHECK(heartbeats.See(0, 1) == News::kNone);
  }
}

TEST(a_page_of_another_init_is_refused_by_all) {
  const auto hub = std::move(InprocHub::Create(3, ControlSegment::BytesFor(3), 1ULL << 32)).value();
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&hub, rank] {
      EngineParts parts;
      parts.placement = {rank, 3, rank, 3, 0, 1};
      parts.bootstrap = hub->MakeBootstrap(rank);
      parts.share = hub->MakeHostShare(rank);
      parts.share.epoch = rank == 1 ? 7 : 8;
      const auto engine = Engine::Create(Settings(), std::move(parts));
      CHECK(!engine.ok() && engine.error().kind == ErrorKind::kConfig);
      CHECK_EQ(engine.error().culprit, rank == 1 ? 0 : 1);
      CHECK(engine.error().message.find("of another init: its epoch is ") != std::string::npos);
    });
  }
}

TEST(why_a_process_is_silent_is_said_of_no_other_with_its_number) {
  const ForkedRank stopped([] {
    ::raise(SIGSTOP);
    return 0;
  });
  while (!stopped.Stopped()) ::usleep(1000);
  const uint64_t started = StartOfProcess(stopped.pid());
  CHECK(started > 0);
  CHECK_EQ(WhyProcessIsSilent(stopped.pid(), started), "it is stopped");
  CHECK_EQ(WhyProcessIsSilent(stopped.pid(), started - 1), "its state is unknown");
  stopped.Kill();
}

}  // namespace
}  // namespace horoacc
