// Who is told to be silent, and when.
#include "runtime/silences.h"

#include "base/clock.h"
#include "check.h"

namespace horoacc {
namespace {

using News = Silences::News;
constexpr Silences::Limits kLimits{5 * kSecond, 10 * kSecond};

TEST(a_peer_that_beats_is_never_told_of) {
  Silences silences(1, kLimits);
  for (int64_t second = 1; second < 100; ++second) {
    silences.Begin(second * kSecond);
    CHECK(silences.See(0, second * kSecond - kSecond / 2) == News::kNone);
    CHECK(!silences.doubtful());
  }
}

TEST(a_silence_is_told_once_then_its_end_or_the_hang) {
  Silences silences(2, kLimits);
  for (int64_t second = 1; second <= 8; ++second) {
    silences.Begin(second * kSecond);
    const News news = silences.See(0, kSecond);
    CHECK((second == 7) == (news == News::kSilent));
    CHECK_EQ(silences.doubtful(), second > 2);
    CHECK(silences.See(1, second * kSecond) == News::kNone);
  }
  silences.Begin(9 * kSecond);
  CHECK(silences.See(0, 9 * kSecond) == News::kBack);
  for (int64_t second = 10; second <= 19; ++second) {
    silences.Begin(second * kSecond);
    CHECK((second == 15) == (silences.See(0, 9 * kSecond) == News::kSilent));
  }
  silences.Begin(20 * kSecond);
  CHECK(silences.See(0, 9 * kSecond) == News::kHangs);
}

TEST(a_short_limit_makes_signs_frequent) {
  CHECK_EQ(Silences(1, kLimits).beat_every_ns(), kSecond);
  CHECK_EQ(Silences(1, {}).beat_every_ns(), kSecond);
  CHECK_EQ(Silences(1, {kSecond, 600 * kSecond}).beat_every_ns(), kSecond / 4);
  CHECK_EQ(Silences(1, {5 * kSecond, 2 * kSecond}).beat_every_ns(), kSecond / 2);
}

TEST(signs_that_are_late_themselves_are_one_silence) {
  Silences silences(1, {kSecond / 2, 0});
  silences.Begin(kSecond);
  CHECK(silences.See(0, kSecond) == News::kNone);
  // Each is looked at long after it came, as if what looks were slow.
  for (int64_t second = 2; second < 20; ++second) {
    silences.Begin(second * kSecond);
    const News news = silences.See(0, (second - 1) * kSecond + 1);
    CHECK((second == 2) == (news == News::kSilent));
    CHECK(news == News::kSilent || news == News::kNone);
  }
  silences.Begin(20 * kSecond);
  CHECK(silences.See(0, 20 * kSecond) == News::kBack);
}

TEST(who_was_stopped_itself_blames_nobody) {
  Silences silences(1, kLimits);
  silences.Begin(kSecond);
  CHECK(silences.See(0, kSecond) == News::kNone);
  silences.Begin(1000 * kSecond);
  CHECK(silences.See(0, kSecond) == News::kNone);
  CHECK(silences.silent_ns(0) < kSecond);
}

TEST(another_clock_does_not_matter) {
  Silences silences(2, kLimits);
  for (int64_t second = 1; second < 20; ++second) {
    silences.Begin(second * kSecond);
    CHECK(silences.See(0, second) == News::kNone);                     // far behind
    CHECK(silences.See(1, (second + 1000) * kSecond) == News::kNone);  // far ahead
  }
}

TEST(nothing_is_told_without_limits) {
  Silences silences(1, {});
  for (int64_t second = 1; second < 1000; ++second) {
    silences.Begin(second * kSecond);
    CHECK(silences.See(0, 1) == News::kNone);
  }
}

}  // namespace
}  // namespace horoacc
