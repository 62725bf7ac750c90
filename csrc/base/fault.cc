#include "base/fault.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <new>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

namespace horoacc {
namespace {

constexpr int kExitCode = 70;

constexpr std::array<std::pair<const char*, FaultSite>, 9> kSites = {{
    {"bootstrap", FaultSite::kBootstrap},
    {"submit", FaultSite::kSubmit},
    {"decide", FaultSite::kDecide},
    {"begin", FaultSite::kBegin},
    {"advance", FaultSite::kAdvance},
    {"finish", FaultSite::kFinish},
    {"send", FaultSite::kSend},
    {"receive", FaultSite::kReceive},
    {"shutdown", FaultSite::kShutdown},
}};

constexpr std::array<std::pair<const char*, FaultAction>, 7> kActions = {{
    {"exit", FaultAction::kExit},
    {"abort", FaultAction::kAbort},
    {"kill", FaultAction::kKill},
    {"stop", FaultAction::kStop},
    {"sleep", FaultAction::kSleep},
    {"error", FaultAction::kError},
    {"throw", FaultAction::kThrow},
}};

template <typename Choice, size_t count>
bool Find(const std::array<std::pair<const char*, Choice>, count>& names, const std::string& text,
          Choice& choice) {
  for (const auto& [name, value] : names) {
    if (text != name) continue;
    choice = value;
    return true;
  }
  return false;
}

template <typename Number>
bool Read(const std::string& text, Number& number) {
  std::istringstream stream(text);
  return (stream >> number) && stream.eof();
}

}  // namespace

Result<FaultOrder> FaultOrder::Parse(const std::string& text) {
  FaultOrder order;
  if (text.empty()) return order;
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ':');) parts.push_back(part);
  bool good = parts.size() == 4;
  if (good) {
    const size_t equals = parts[3].find('=');
    good = Find(kSites, parts[0], order.site) && Read(parts[1], order.rank) && order.rank >= 0 &&
           Read(parts[2], order.nth) && order.nth >= 1 &&
           Find(kActions, parts[3].substr(0, equals), order.action);
    const bool timed = equals != std::string::npos;
    good = good && timed == (order.action == FaultAction::kSleep) &&
           (!timed || (Read(parts[3].substr(equals + 1), order.seconds) && order.seconds >= 0));
    // At these sites there is no caller to return an error to.
    const bool alone = order.site == FaultSite::kDecide || order.site == FaultSite::kShutdown;
    good = good && !(alone && order.action == FaultAction::kError);
  }
  if (good) return order;
  return MakeError(ErrorKind::kConfig, "setting 'fault' cannot be '" + text +
                                           "': it is site:rank:nth:action, as in "
                                           "advance:1:3:kill");
}

Status FaultPoints::Strike() {
  if (came_.fetch_add(1) + 1 != order_.nth) return {};
  switch (order_.action) {
    case FaultAction::kExit:
      ::_exit(kExitCode);
    case FaultAction::kAbort:
      std::abort();
    case FaultAction::kKill:
      ::raise(SIGKILL);
      break;
    case FaultAction::kStop:
      ::raise(SIGSTOP);
      break;
    case FaultAction::kSleep:
      std::this_thread::sleep_for(std::chrono::duration<double>(order_.seconds));
      break;
    case FaultAction::kError:
      return MakeError(ErrorKind::kSystem, "an error was ordered here (setting 'fault')",
                       order_.rank);
    case FaultAction::kThrow:
      throw std::bad_alloc();
  }
  return {};
}

}  // namespace horoacc
