#include "runtime/job/cores.h"

#include <sched.h>

#include <set>
#include <sstream>

namespace horoacc {

std::string AllowedCores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return "";
  std::string list;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) list += (list.empty() ? "" : ",") + std::to_string(core);
  }
  return list;
}

int CountCores(std::span<const std::string> lists) {
  std::set<std::string> cores;
  for (const std::string& list : lists) {
    std::istringstream stream(list);
    for (std::string core; std::getline(stream, core, ',');) cores.insert(core);
  }
  return static_cast<int>(cores.size());
}

}  // namespace horoacc
