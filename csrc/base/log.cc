#include "base/log.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cinttypes>
#include <condition_variable>
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

void Put(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

// Writes as much as is taken without waiting. The flag O_NONBLOCK belongs to the open file, which
// other processes have as well; a pipe or a terminal is therefore opened once more. Returns how
// much was written.
size_t PutAtOnce(int fd, std::string_view text) {
  struct stat kind{};
  if (::fstat(fd, &kind) != 0) return text.size();  // there is no stderr
  ssize_t written = 0;
  if (S_ISSOCK(kind.st_mode)) {
    written = ::send(fd, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  } else if (S_ISFIFO(kind.st_mode) || S_ISCHR(kind.st_mode)) {
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    const int own = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (own < 0) return 0;
    written = ::write(own, text.data(), text.size());
    ::close(own);
  } else {
    Put(fd, text);
    return text.size();
  }
  return written > 0 ? static_cast<size_t>(written) : 0;
}

}  // namespace

// Lines that stderr would not take at once. A thread, which exists while there are some, writes
// them; it is detached, since a terminal that was stopped may keep it for ever, and shares this
// object.
class Log::Backlog : public std::enable_shared_from_this<Log::Backlog> {
 public:
  explicit Backlog(int fd) : fd_(fd) {}

  void Take(std::string line) {
    const std::lock_guard lock(mutex_);
    if (lines_.empty()) line.erase(0, PutAtOnce(fd_, line));
    if (line.empty()) return;
    if (lines_.size() >= kMostLines) {
      ++lost_;
      return;
    }
    lines_.push_back(std::move(line));
    if (writing_) return;
    try {
      std::thread([self = shared_from_this()] { self->WriteAll(); }).detach();
      writing_ = true;
    } catch (const std::system_error&) {
      writing_ = false;  // the next line tries again
    }
  }

  void AwaitEmpty(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    (void)emptied_.wait_for(lock, limit, [this] { return lines_.empty(); });
  }

 private:
  void WriteAll() {
    std::unique_lock lock(mutex_);
    for (; !lines_.empty(); lines_.pop_front()) {
      const std::string line = std::move(lines_.front());
      const uint64_t lost = lines_.size() > 1 ? 0 : std::exchange(lost_, 0);
      lock.unlock();
      Put(fd_, line);
      if (lost > 0) {
        char told[80];
        std::snprintf(told, sizeof told, "horoacc: %" PRIu64 " more lines were lost\n", lost);
        Put(fd_, told);
      }
      lock.lock();
    }
    writing_ = false;
    emptied_.notify_all();
  }

  const int fd_;
  std::mutex mutex_;
  std::condition_variable emptied_;
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

void Log::Flush(std::chrono::milliseconds limit) const { backlog_->AwaitEmpty(limit); }

}  // namespace horoacc
