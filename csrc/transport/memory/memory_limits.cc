#include "transport/memory/memory_limits.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>

#include "base/page.h"

namespace horoacc {
namespace {

constexpr uint64_t kNone = ~uint64_t{0};
/// A process has 2^47 or 2^48 bytes of addresses.
constexpr uint64_t kAddresses = uint64_t{1} << 47;

/// The number in a file; kNone if there is none, or none in it ("max").
uint64_t NumberIn(const std::filesystem::path& file) {
  std::ifstream stream(file);
  uint64_t number = 0;
  return stream >> number ? number : kNone;
}

/// The least limit of a group and of those that it lies in.
uint64_t LeastUpwards(const std::filesystem::path& root, std::filesystem::path group,
                      const char* file) {
  uint64_t least = NumberIn(root / file);
  // A container may see another path than the one under which its group is mounted.
  for (group = group.relative_path(); !group.empty(); group = group.parent_path())
    least = std::min(least, NumberIn(root / group / file));
  return least;
}

}  // namespace

uint64_t ControlGroupLimit(const std::filesystem::path& groups, const std::filesystem::path& root) {
  uint64_t least = kNone;
  std::ifstream stream(groups);
  for (std::string line; std::getline(stream, line);) {  // number:controllers:path
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = ',' + line.substr(first + 1, second - first - 1) + ',';
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") {
      least = std::min(least, LeastUpwards(root, path, "memory.max"));
    } else if (controllers.find(",memory,") != std::string::npos) {
      least = std::min(least, LeastUpwards(root / "memory", path, "memory.limit_in_bytes"));
    }
  }
  return least == kNone ? 0 : least;
}

uint64_t MemoryLimit() {
  const uint64_t machine = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * PageSize();
  const uint64_t group = ControlGroupLimit("/proc/self/cgroup", "/sys/fs/cgroup");
  return group == 0 ? machine : std::min(machine, group);
}

uint64_t AddressesForEach(uint64_t parts, uint64_t others) {
  uint64_t all = kAddresses;
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    const uint64_t pages = NumberIn("/proc/self/statm");  // of addresses in use
    const uint64_t used = others + (pages == kNone ? 0 : pages * PageSize());
    all = std::min<uint64_t>(all, limit.rlim_cur > used ? limit.rlim_cur - used : 0);
  }
  return all / 2 / std::max<uint64_t>(parts, 1);
}

}  // namespace horoacc
