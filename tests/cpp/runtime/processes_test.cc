// Ranks that are processes: that they reduce, and what an engine leaves behind in its own.
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "support/process_jobs.h"

namespace horoacc::testing {
namespace {

TEST(allreduce_in_processes) {
  for (const Pairs& settings : {kSegment, kMessages}) {
    for (const int size : {2, 4}) {
      Job job(size);
      job.Start([&](int rank) {
        const OwnedEngine engine = job.Engine(rank, settings);
        for (int k = 0; k < 5; ++k) {
          CheckAllreduce(engine.get(), size);
          std::vector<float> data(300'000, static_cast<float>(rank + k));
          Call call(engine.get(), "data", data.data(), data.size());
          CHECK_EQ(call.Wait(), HA_OK);
          const auto sum = static_cast<float>(size * (size - 1) / 2 + size * k);
          for (const float value : data) CHECK_EQ(value, sum);
        }
        CHECK_EQ(ha_engine_shutdown(engine.get(), nullptr), HA_OK);
        return 0;
      });
      job.CheckEnds();
    }
  }
}

/// How many descriptors, threads and mappings this process has.
struct Footprint {
  size_t descriptors = Listing("/proc/self/fd").size();
  size_t threads = Listing("/proc/self/task").size();
  size_t mappings = 0;
  Footprint() {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) mappings += Contains(line, "horoacc");
  }
};

TEST(twenty_engines_leave_nothing_behind) {
  for (const Pairs& settings : {kSegment, kMessages}) {
    Job job(2);
    job.Start([&](int rank) {
      std::thread([] {}).join();  // with the first one, a sanitizer starts a thread of its own
      const Footprint before;
      for (int cycle = 0; cycle < 20; ++cycle) {
        OwnedEngine engine = job.Engine(rank, settings);
        CheckAllreduce(engine.get(), 2);
        if (cycle == 0) CHECK(Footprint().descriptors > before.descriptors);
        if (cycle == 0) CHECK(Footprint().mappings > before.mappings);
        if (cycle % 2) CHECK_EQ(ha_engine_shutdown(engine.get(), nullptr), HA_OK);
        engine.reset();
        // The kernel may list a thread for a moment after it was joined.
        const int64_t deadline = NowNs() + 5 * kSecond;
        while (Footprint().threads > before.threads && NowNs() < deadline) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        const Footprint after;
        CHECK_EQ(after.descriptors, before.descriptors);
        CHECK(after.threads <= before.threads);
        CHECK_EQ(after.mappings, before.mappings);
      }
      return 0;
    });
    job.CheckEnds();
  }
}

TEST(a_rank_that_leaves_in_good_order_is_no_loss) {
  for (const Pairs& settings : {kSegment, kMessages}) {
    constexpr int kSize = 4;
    Job job(kSize);
    job.Start([&](int rank) {
      const OwnedEngine engine = job.Engine(rank, settings);
      CheckAllreduce(engine.get(), kSize);
      if (rank == 2) return 0;
      float value = 1;
      Call call(engine.get(), "late", &value, 1);
      CHECK_EQ(call.Wait(), HA_ABORTED);
      CHECK(Contains(call.error().message, "rank 2 has shut down"));
      return 0;
    });
    job.CheckEnds();
  }
}

}  // namespace
}  // namespace horoacc::testing
