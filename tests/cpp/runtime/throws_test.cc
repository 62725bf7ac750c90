// The standard library throws in the engine of one rank: all ranks hear of it, and all engines end.
#include <string>

#include "support/process_jobs.h"

namespace horoacc::testing {
namespace {

// Calls until one fails, which is at once on the rank that throws and soon on the other.
void CallUntilItFails(ha_engine* engine) {
  std::vector<float> data(1 << 16, 1.0f);
  for (int step = 0; step < 1000; ++step) {
    Call call(engine, "data", data.data(), data.size());
    if (call.Wait() == HA_OK) continue;
    CHECK(Contains(call.error().message, "rank 1 cannot go on: its engine failed with"));
    CHECK_EQ(call.error().culprit, 1);
    return;
  }
  check::Fail(__FILE__, __LINE__, "no call has failed");
}

TEST(an_exception_becomes_an_abort_that_names_its_rank) {
  for (const Pairs& where : {Pairs{}, Pairs{{"simulated_hosts", "1+1"}}}) {
    for (const char* site : {"submit", "decide", "begin", "advance", "finish"}) {
      if (site == std::string("decide") && !where.empty()) continue;  // rank 0 does
      Pairs settings = where;
      settings.emplace_back("log_level", "fatal");
      settings.emplace_back("last_arriver_bytes", "0");
      settings.emplace_back("fault", std::string(site) + ":1:2:throw");
      Job job(2);
      job.Start([&](int rank) {
        const OwnedEngine engine = job.Engine(rank, settings);
        CallUntilItFails(engine.get());
        return 0;
      });
      job.CheckEnds();
    }
  }
}

TEST(an_exception_in_shutdown_ends_the_engine_all_the_same) {
  Job job(2);
  job.Start([&](int rank) {
    const OwnedEngine engine =
        job.Engine(rank, {{"log_level", "fatal"}, {"fault", "shutdown:1:1:throw"}});
    CheckAllreduce(engine.get(), 2);
    job.Reached();
    (void)job.AwaitLetGo();  // the other rank has its result as well
    return 0;
  });
  job.AwaitReached(2);
  job.LetGo();
  job.CheckEnds();
}

}  // namespace
}  // namespace horoacc::testing
