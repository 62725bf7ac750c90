#include "base/log.h"

#include <limits.h>
#include <poll.h>

#include <cinttypes>
#include <cstdio>
#include <ctime>
#include <deque>
#include <mutex>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace horoacc {
namespace {

constexpr size_t kMostLines = 1000;

}  // namespace

// Lines that stderr would not take at once. A thread, which exists while there are some, writes
// them; it is detached, since a terminal that was stopped may keep it for ever, and shares this
// object.
class Log::Backlog : public std::enable_shared_from_this<Log::Backlog> {
 public:
  explicit Backlog(int fd) : fd_(fd) {}

  void Take(std::string line) {
    const std::lock_guard lock(mutex_);
    if (lines_.empty() && TakesAtOnce(line)) return Put(line);
    if (lines_.size() >= kMostLines) {
      ++lost_;
      return;
    }
    lines_.push_back(std::move(line));
    if (writing_) return;
    try {
      std::thread([self = shared_from_this()] { self->WriteAll(); }).detach();
      writing_ = true;
    } catch (const std::system_error&) {  // no thread: the next line tries again
    }
  }

 private:
  // A pipe that can be written takes PIPE_BUF bytes without waiting.
  [[nodiscard]] bool TakesAtOnce(const std::string& line) const {
    pollfd asked{fd_, POLLOUT, 0};
    return line.size() <= PIPE_BUF && ::poll(&asked, 1, 0) == 1;
  }

  void Put(std::string_view line) const {
    [[maybe_unused]] const ssize_t written = ::write(fd_, line.data(), line.size());
  }

  void WriteAll() {
    for (std::unique_lock lock(mutex_); !lines_.empty(); lines_.pop_front()) {
      const std::string line = std::move(lines_.front());
      const uint64_t lost = lines_.size() > 1 ? 0 : std::exchange(lost_, 0);
      lock.unlock();
      Put(line);
      if (lost > 0) {
        char told[80];
        std::snprintf(told, sizeof told, "horoacc: %" PRIu64 " more lines were lost\n", lost);
        Put(told);
      }
      lock.lock();
    }
    writing_ = false;
  }

  const int fd_;
  std::mutex mutex_;
  std::deque<std::string> lines_;
  uint64_t lost_ = 0;
  bool writing_ = false;  ///< the thread exists
};

Log::Log(int rank, LogLevel level, bool hide_time, int fd)
    : rank_(rank), level_(level), hide_time_(hide_time), backlog_(std::make_shared<Backlog>(fd)) {}

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
  backlog_->Take(std::move(line));
}

}  // namespace horoacc
