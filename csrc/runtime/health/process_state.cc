#include "runtime/health/process_state.h"

#include <fstream>
#include <sstream>

namespace horoacc {
namespace {

struct Stat {
  char state = '?';
  uint64_t started_ticks = 0;
};

// proc(5): the name in parentheses, which may hold anything, then the state; the start is field 22.
Stat StatOf(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream fields(text.substr(name_end + 1));
  Stat stat;
  fields >> stat.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> stat.started_ticks;
  return stat;
}

}  // namespace

uint64_t StartOfProcess(int pid) { return StatOf(pid).started_ticks; }

std::string WhyProcessIsSilent(int pid, uint64_t started_ticks) {
  const Stat stat = StatOf(pid);
  if (stat.started_ticks == 0 || stat.started_ticks != started_ticks) return "its state is unknown";
  switch (stat.state) {
    case 'T':
      return "it is stopped";
    case 't':
      return "a debugger holds it";
    case 'D':
      return "it waits for a disk or another device";
    case 'Z':
      return "it is ending";
    default:
      return "it gets no processor, or its engine hangs";
  }
}

double SecondsWithoutProcessor() {
  std::ifstream file("/proc/self/schedstat");
  uint64_t ran_ns = 0;
  uint64_t waited_ns = 0;
  file >> ran_ns >> waited_ns;
  return file ? static_cast<double>(waited_ns) / 1e9 : 0;
}

bool IsDumpingCore(int pid, uint64_t started_ticks) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("CoreDumping:")) {
      return line.ends_with('1') && StatOf(pid).started_ticks == started_ticks;
    }
  }
  return false;
}

}  // namespace horoacc
