#pragma once
// Messages on stderr, one write per line so that lines of different ranks do not mix.
#include <string>

#include "base/settings.h"

namespace horoacc {

/// One rank's logger. Immutable, so any thread may use it.
class Log {
 public:
  Log(int rank, LogLevel level, bool hide_time)
      : rank_(rank), level_(level), hide_time_(hide_time) {}
  [[nodiscard]] bool Enabled(LogLevel level) const { return level >= level_; }
  void Write(LogLevel level, const std::string& text) const;

 private:
  int rank_;
  LogLevel level_;
  bool hide_time_;
};

}  // namespace horoacc
