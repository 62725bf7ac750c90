#include "runtime/stack_source.h"

#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sstream>
#include <vector>

namespace horoacc {
namespace {

constexpr size_t kMostBytes = 64 << 10;
constexpr size_t kFrames = 6;
constexpr const char* kFileMark = "  File \"";

// Raised where nobody handles it, it would end the process.
bool IsHandled(int signal) {
  struct sigaction action{};
  if (sigaction(signal, nullptr, &action) != 0) return false;
  return action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN;
}

std::string ContentsOf(int fd) {
  std::string text(kMostBytes, '\0');
  const ssize_t bytes = ::pread(fd, text.data(), text.size(), 0);
  text.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
  return text;
}

}  // namespace

void StackSource::Set(int signal, int fd, int asked_fd) {
  std::lock_guard lock(mutex_);
  signal_ = signal;
  fd_ = fd;
  asked_fd_.store(asked_fd, std::memory_order_relaxed);
}

std::string StackSource::Take() {
  std::lock_guard lock(mutex_);
  if (fd_ < 0 || !IsHandled(signal_) || ::ftruncate(fd_, 0) != 0) return "";
  sigset_t only;
  sigset_t before;
  sigemptyset(&only);
  sigaddset(&only, signal_);
  pthread_sigmask(SIG_UNBLOCK, &only, &before);
  pthread_kill(pthread_self(), signal_);  // the handler has run when this returns
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return ContentsOf(fd_);
}

bool StackSource::WasAsked() {
  const int fd = asked_fd_.load(std::memory_order_relaxed);
  if (fd < 0) return false;
  struct stat file{};
  if (::fstat(fd, &file) != 0 || file.st_size == 0) return false;
  return ::ftruncate(fd, 0) == 0;
}

std::string MainStackOf(const std::string& text) {
  std::vector<std::string> frames;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("Thread ") || line.starts_with("Current thread ")) frames.clear();
    if (!line.starts_with(kFileMark)) continue;
    // File "x.py", line 7 in f
    const size_t path_end = line.rfind("\", line ");
    const size_t name = line.rfind(" in ");
    if (path_end == std::string::npos || name == std::string::npos || name < path_end) continue;
    const size_t folder_end = line.rfind('/', path_end);
    const size_t base = folder_end == std::string::npos ? std::char_traits<char>::length(kFileMark)
                                                        : folder_end + 1;
    const size_t number = path_end + 8;
    frames.push_back(line.substr(name + 4) + " (" + line.substr(base, path_end - base) + ":" +
                     line.substr(number, name - number) + ")");
  }
  std::string shown;
  for (size_t k = 0; k < frames.size() && k < kFrames; ++k) shown += (k ? " < " : "") + frames[k];
  if (frames.size() > kFrames) shown += " < ...";
  return shown;
}

}  // namespace horoacc
