#pragma once
// Messages on stderr, one write per line so that lines of different ranks do not mix.
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>

#include "base/settings.h"

namespace horoacc {

/// One rank's logger. Any thread may use it, and may hold a lock meanwhile: no call but Flush waits
/// for the reader of stderr. Copies share the lines that stderr has not taken yet.
class Log {
 public:
  Log(int rank, LogLevel level, bool hide_time, int fd = STDERR_FILENO);
  [[nodiscard]] bool Enabled(LogLevel level) const { return level >= level_; }
  void Write(LogLevel level, const std::string& text) const;
  /// Waits until stderr has taken every line, but no longer than `limit`.
  void Flush(std::chrono::milliseconds limit) const;

 private:
  class Backlog;

  int rank_;
  LogLevel level_;
  bool hide_time_;
  std::shared_ptr<Backlog> backlog_;
};

}  // namespace horoacc
