// Every site at which a rank can fail, with every way to fail, under each controller: every rank
// ends in time, with right results, or with an error that names the rank at fault.
#include <string>

#include "support/swept_jobs.h"

namespace horoacc::testing {
namespace {

struct Order {
  std::string site, action;
  int size = 0;
  bool messages = false;  ///< each rank is on a host of its own

  // Between hosts rank 0 decides; on one host the last to come, as this test sees to.
  [[nodiscard]] int victim() const { return messages && site == "decide" ? 0 : size - 1; }
  [[nodiscard]] bool starts() const { return site.starts_with("bootstrap"); }
  /// Within a host no messages go.
  [[nodiscard]] bool passes() const { return messages || (site != "send" && site != "receive"); }
  [[nodiscard]] bool dies() const {
    return action == "exit" || action == "abort" || action == "kill";
  }
  [[nodiscard]] std::string text() const {
    const std::string nth = site == "bootstrap2" ? "2" : starts() || site == "shutdown" ? "1" : "3";
    return site.substr(0, site.find('2')) + ":" + std::to_string(victim()) + ":" + nth + ":" +
           action;
  }
  [[nodiscard]] std::string name() const {
    return text() + " of " + std::to_string(size) + (messages ? " hosts" : " on one host");
  }
};

/// The error names the rank, and is of the kind that its end has.
void CheckNames(const Order& order, const ha_error& error) {
  const auto refuse = [&](const std::string& why) {
    check::Fail(__FILE__, __LINE__,
                order.name() + ": " + why + ": kind " + std::to_string(error.kind) + ", culprit " +
                    std::to_string(error.culprit) + ", '" + error.message + "'");
  };
  if (error.kind == HA_OK) refuse("an error without a kind");
  if (error.culprit != order.victim()) refuse("another rank is named");
  if (!order.starts() && order.dies() && error.kind != HA_PEER_LOST) refuse("another kind");
  if (order.action == "stop" && error.kind != HA_TIMEOUT) refuse("another kind");
}

int Run(const Job& job, const Order& order, int rank) {
  OwnedEngine engine;
  Pairs settings = SweepSettings(order.messages, order.action == "stop" ? "4" : "20");
  settings.emplace_back("fault", order.text());
  const ha_error start = job.MakeEngine(rank, settings, engine);
  if (!engine) {
    CheckNames(order, start);
    return kTold;
  }
  const auto error = MakeCalls(engine.get(), rank, order.size, order.victim());
  if (error) CheckNames(order, *error);
  const int64_t left = NowNs();
  const int ended = ha_engine_shutdown(engine.get(), nullptr);
  CHECK(NowNs() - left < 10 * kSecond);
  if (!error && (rank != order.victim() || order.action == "sleep=0.2")) CHECK_EQ(ended, HA_OK);
  return error ? kTold : kWell;
}

/// Whether a rank may end so.
bool MayEnd(const Order& order, int rank, int code) {
  if (!order.passes() || order.action == "sleep=0.2") return code == kWell;
  if (rank == order.victim()) {
    if (order.action == "exit") return code == 70;
    if (order.action == "abort") return code == 1000 + SIGABRT;
    if (order.action == "kill" || order.action == "stop") return code == 1000 + SIGKILL;
  }
  // On a busy machine this message may be a heartbeat, which nobody misses.
  if (order.site == "send" && order.action == "error" && code == kWell) return true;
  if (order.site != "shutdown") return code == kTold;
  // The others may be in the last call, of which a rank that is gone sends no more bytes.
  return code == kWell || code == kTold;
}

struct RunningJob {
  explicit RunningJob(const Order& ordered) : order(ordered), job(ordered.size) {
    job.Start([this](int rank) { return Run(job, order, rank); });
  }
  void Finish() {
    for (int turn = 0; turn < 2; ++turn) {
      for (int rank = 0; rank < order.size; ++rank) {
        // A rank that stops is ended once the others have.
        const bool stopped = order.action == "stop" && order.passes() && rank == order.victim();
        if (stopped != (turn == 1)) continue;
        if (stopped) job.Kill(rank);
        const int code = job.Await(rank);
        if (MayEnd(order, rank, code)) continue;
        check::Fail(__FILE__, __LINE__,
                    order.name() + ": rank " + std::to_string(rank) + " ended with " +
                        std::to_string(code));
      }
    }
  }
  const Order order;
  Job job;
};

constexpr const char* kSites[] = {"bootstrap", "bootstrap2", "submit", "decide",  "begin",
                                  "advance",   "finish",     "send",   "receive", "shutdown"};

void Sweep(int size, bool messages) {
  JobsAtOnce<RunningJob> jobs(4);
  for (const char* action : {"exit", "abort", "kill", "sleep=0.2", "error", "throw"}) {
    for (const char* site : kSites) {
      const Order order{site, action, size, messages};
      // There nobody could be told of an error.
      if (order.action == "error" && (order.site == "decide" || order.site == "shutdown")) continue;
      jobs.Start(order);
    }
  }
  jobs.FinishAll();
}

// These jobs wait for their limits: many at once, those that wait longest first.
TEST(stopped_in_jobs_of_all_kinds) {
  JobsAtOnce<RunningJob> jobs(16);
  for (const char* site : kSites) {
    for (const int size : {2, 4, 8}) {
      for (const bool messages : {false, true}) jobs.Start(Order{site, "stop", size, messages});
    }
  }
  jobs.FinishAll();
}
TEST(two_ranks_on_one_host) { Sweep(2, false); }
TEST(two_ranks_on_hosts_of_their_own) { Sweep(2, true); }
TEST(four_ranks_on_one_host) { Sweep(4, false); }
TEST(four_ranks_on_hosts_of_their_own) { Sweep(4, true); }
TEST(eight_ranks_on_one_host) { Sweep(8, false); }
TEST(eight_ranks_on_hosts_of_their_own) { Sweep(8, true); }

}  // namespace
}  // namespace horoacc::testing
