#include "base/log.h"

#include <unistd.h>

#include <ctime>

namespace horoacc {

void Log::Write(LogLevel level, const std::string& text) const {
  if (!Enabled(level)) return;
  constexpr const char* kNames[] = {"trace", "debug", "info", "warning", "error", "fatal"};
  std::string line = "horoacc";
  if (!hide_time_) {
    char stamp[32];
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    localtime_r(&now, &parts);
    std::strftime(stamp, sizeof stamp, " %H:%M:%S", &parts);
    line += stamp;
  }
  line +=
      " rank " + std::to_string(rank_) + " " + kNames[static_cast<int>(level)] + ": " + text + "\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace horoacc
