// Ranks that a launcher has bound to a core each still have a core each.
#include "runtime/job/cores.h"

#include <sched.h>

#include <thread>
#include <vector>

#include "support/check.h"

namespace horoacc {
namespace {

int Count(const std::vector<std::string>& lists) { return CountCores(lists); }

TEST(cores_of_several_ranks_are_counted_once) {
  CHECK_EQ(Count({}), 0);
  CHECK_EQ(Count({"0,1", "0,1"}), 2);
  CHECK_EQ(Count({"0", "1"}), 2);
  CHECK_EQ(Count({"0,11", "1,11", ""}), 3);
}

TEST(a_bound_thread_names_its_core_only) {
  const std::string before = AllowedCores();
  CHECK(Count({before}) >= 1);
  std::thread([] {
    cpu_set_t all, one;
    CHECK_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    int core = 0;
    while (!CPU_ISSET(core, &all)) ++core;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    CHECK_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    CHECK_EQ(AllowedCores(), std::to_string(core));
  }).join();
  CHECK_EQ(AllowedCores(), before);
}

}  // namespace
}  // namespace horoacc
