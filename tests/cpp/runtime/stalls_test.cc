// A rank that keeps the others waiting: what is said about it, and what may follow.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <regex>
#include <string>
#include <thread>

#include "support/process_jobs.h"

namespace horoacc::testing {
namespace {

/// What a rank writes to stderr.
class Stderr {
 public:
  Stderr() : file_(std::tmpfile()) { CHECK(file_ != nullptr); }
  ~Stderr() { std::fclose(file_); }
  Stderr(const Stderr&) = delete;
  Stderr& operator=(const Stderr&) = delete;

  /// In a rank: from now on its stderr goes here.
  void Take() const { CHECK(::dup2(::fileno(file_), STDERR_FILENO) >= 0); }
  [[nodiscard]] std::string Text() const {
    std::string text(1 << 16, '\0');
    const ssize_t length = ::pread(::fileno(file_), text.data(), text.size(), 0);
    text.resize(static_cast<size_t>(std::max<ssize_t>(length, 0)));
    return text;
  }

 private:
  std::FILE* file_;
};

template <size_t kRanks>
std::string TextOf(const std::array<Stderr, kRanks>& ranks) {
  std::string text;
  for (const Stderr& rank : ranks) text += rank.Text();
  return text;
}

template <size_t kRanks>
void AwaitText(const std::array<Stderr, kRanks>& ranks, const std::regex& expected,
               int64_t limit = 20 * kSecond) {
  const int64_t deadline = NowNs() + limit;
  while (!std::regex_match(TextOf(ranks), expected)) {
    if (NowNs() > deadline) check::Fail(__FILE__, __LINE__, "the ranks said: " + TextOf(ranks));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

template <size_t kRanks>
void CheckText(const std::array<Stderr, kRanks>& ranks, const std::regex& expected) {
  AwaitText(ranks, expected, 0);
}

TEST(a_stalled_tensor_is_told_and_goes_on) {
  for (const char* hosts : {"", "each"}) {
    constexpr int kSize = 4;
    Job job(kSize);
    const std::array<Stderr, kSize> texts;
    job.Start([&](int rank) {
      texts[rank].Take();
      const OwnedEngine engine = job.Engine(
          rank,
          {{"simulated_hosts", hosts}, {"stall_warning_seconds", "2"}, {"log_hide_time", "1"}});
      CheckAllreduce(engine.get(), kSize);
      if (rank == 1 || rank == 3) (void)job.AwaitLetGo();
      float value = 2;
      Call call(engine.get(), "layer.weight", &value, 1);
      CHECK_EQ(call.Wait(), HA_OK);
      CHECK_EQ(value, 8.0f);
      return 0;
    });
    // One of those that are ready tells it, once; after how many seconds is the machine's affair.
    const std::regex expected(
        "horoacc rank [02] warning: tensor 'layer\\.weight' has waited for \\d+ s: "
        "rank\\(s\\) 0, 2 are ready, rank\\(s\\) 1, 3 have not submitted it\n");
    AwaitText(texts, expected);
    job.LetGo();
    job.CheckEnds();
    CheckText(texts, expected);
  }
}

// The tensor is told of in time, although the lowest rank comes shortly before.
TEST(a_rank_that_came_late_does_not_put_the_warning_off) {
  constexpr int kSize = 3;
  Job job(kSize);
  const std::array<Stderr, kSize> texts;
  job.Start([&](int rank) {
    texts[rank].Take();
    const OwnedEngine engine =
        job.Engine(rank, {{"stall_warning_seconds", "3.5"}, {"log_hide_time", "1"}});
    CheckAllreduce(engine.get(), kSize);
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    if (rank == 2) (void)job.AwaitLetGo();
    float value = 2;
    Call call(engine.get(), "late", &value, 1);
    CHECK_EQ(call.Wait(), HA_OK);
    return 0;
  });
  const std::regex expected(
      "horoacc rank 1 warning: tensor 'late' has waited for \\d+ s: "
      "rank\\(s\\) 0, 1 are ready, rank\\(s\\) 2 have not submitted it\n");
  AwaitText(texts, expected);
  job.LetGo();
  job.CheckEnds();
  CheckText(texts, expected);
}

TEST(a_join_that_stalls_is_told_and_goes_on) {
  for (const char* hosts : {"", "each"}) {
    constexpr int kSize = 4;
    Job job(kSize);
    const std::array<Stderr, kSize> texts;
    job.Start([&](int rank) {
      texts[rank].Take();
      const OwnedEngine engine = job.Engine(
          rank,
          {{"simulated_hosts", hosts}, {"stall_warning_seconds", "2"}, {"log_hide_time", "1"}});
      CheckAllreduce(engine.get(), kSize);
      // The first join of all is in order; only the second one stalls.
      CHECK_EQ(Call(engine.get()).Wait(), HA_OK);
      if (rank == 1 || rank == 3) (void)job.AwaitLetGo();
      CHECK_EQ(Call(engine.get()).Wait(), HA_OK);
      return 0;
    });
    const std::regex expected(
        "horoacc rank [02] warning: 'join' has waited for \\d+ s: "
        "rank\\(s\\) 0, 2 have joined, rank\\(s\\) 1, 3 have not, and submit nothing\n");
    AwaitText(texts, expected);
    job.LetGo();
    job.CheckEnds();
    CheckText(texts, expected);
  }
}

// Ranks that go on while others have joined keep nobody waiting, however long it takes.
TEST(a_join_stalls_once_the_others_do_nothing) {
  for (const char* hosts : {"", "each"}) {
    constexpr int kSize = 3;
    Job job(kSize);
    job.Start([&](int rank) {
      const OwnedEngine engine = job.Engine(rank, {{"simulated_hosts", hosts},
                                                   {"stall_warning_seconds", "1"},
                                                   {"stall_shutdown_seconds", "1.5"},
                                                   {"log_level", "fatal"}});
      CheckAllreduce(engine.get(), kSize);
      if (rank == 1) {
        for (int step = 0; step < 10; ++step) {
          float value = 1;
          Call call(engine.get(), "alone", &value, 1);
          CHECK_EQ(call.Wait(), HA_OK);
          std::this_thread::sleep_for(std::chrono::milliseconds(250));
        }
        (void)job.AwaitLetGo();
        Call late(engine.get());
        CHECK_EQ(late.Wait(), HA_TIMEOUT);
        return 0;
      }
      const int64_t began = NowNs();
      Call join(engine.get());
      CHECK_EQ(join.Wait(), HA_TIMEOUT);
      CHECK(NowNs() - began > 2500 * kMillisecond);
      const std::string text = join.error().message;
      if (!Contains(text, "'join' was not called by rank(s) 1 within"))
        check::Fail(__FILE__, __LINE__, text);
      CHECK_EQ(join.error().culprit, 1);
      job.Reached();
      return 0;
    });
    job.AwaitReached(2);
    job.LetGo();
    job.CheckEnds();
  }
}

TEST(a_stalled_tensor_ends_the_job_if_asked_to) {
  for (const char* hosts : {"", "each"}) {
    constexpr int kSize = 4;
    Job job(kSize);
    job.Start([&](int rank) {
      const OwnedEngine engine = job.Engine(rank, {{"simulated_hosts", hosts},
                                                   {"stall_warning_seconds", "2"},
                                                   {"stall_shutdown_seconds", "3"},
                                                   {"log_level", "fatal"}});
      CheckAllreduce(engine.get(), kSize);
      float value = 2;
      if (rank % 2 == 0) {
        Call call(engine.get(), "layer.weight", &value, 1);
        CHECK_EQ(call.Wait(), HA_TIMEOUT);
        CHECK(Contains(call.error().message, "'layer.weight'"));
        CHECK(Contains(call.error().message, "rank(s) 1, 3"));
        CHECK_EQ(call.error().culprit, 1);
        job.Reached();
        return 0;
      }
      // Those that did not come hear of it with whatever they do next.
      (void)job.AwaitLetGo();
      Call call(engine.get(), "other", &value, 1);
      CHECK_EQ(call.Wait(), HA_TIMEOUT);
      CHECK(Contains(call.error().message, "'layer.weight'"));
      return 0;
    });
    job.AwaitReached(2);
    job.LetGo();
    job.CheckEnds();
  }
}

}  // namespace
}  // namespace horoacc::testing
