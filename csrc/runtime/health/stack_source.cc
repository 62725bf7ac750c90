#include "runtime/health/stack_source.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <vector>

#include "base/clock.h"
#include "transport/net/socket.h"

namespace horoacc {
namespace {

constexpr size_t kMostBytes = 64 << 10;
constexpr int64_t kAnswerLimit = 300 * kMillisecond;
constexpr size_t kFrames = 6;
constexpr int64_t kReading = 2 * kSecond;
constexpr int64_t kLook = kMillisecond;
constexpr const char* kTooMany = "...";  // threads: the main one, which comes last, is left out
constexpr const char* kFileMark = "  File \"";

// Raised where nobody handles it, it would end the process.
bool IsHandled(int signal) {
  struct sigaction action{};
  if (sigaction(signal, nullptr, &action) != 0) return false;
  return action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN;
}

// The end of it: the main thread's section is the last.
std::string ContentsOf(int fd) {
  const off_t size = ::lseek(fd, 0, SEEK_END);
  if (size <= 0) return "";
  const auto most = static_cast<off_t>(kMostBytes);
  std::string text(std::min(size, most), '\0');
  const ssize_t bytes = ::pread(fd, text.data(), text.size(), std::max<off_t>(size - most, 0));
  text.resize(std::max<ssize_t>(bytes, 0));
  return text;
}

// In a child. What it reads may have been changing as it was copied: then the child ends, without a
// word and a core, and nothing else does.
[[noreturn]] void RaiseAndEnd(int signal) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::prctl(PR_SET_DUMPABLE, 0);
  sigset_t open;
  sigemptyset(&open);
  for (const int fatal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) {
    ::signal(fatal, SIG_DFL);
    sigaddset(&open, fatal);
  }
  sigaddset(&open, signal);
  sigprocmask(SIG_UNBLOCK, &open, nullptr);
  ::syscall(SYS_tgkill, ::getpid(), ::syscall(SYS_gettid), signal);  // has run when this returns
  ::_exit(0);
}

void AwaitEnd(pid_t child) {
  const int64_t deadline = NowNs() + kReading;
  // __WALL: it is none of those for which the script may wait.
  while (::waitpid(child, nullptr, __WALL | WNOHANG) == 0) {
    if (NowNs() > deadline) {
      ::kill(child, SIGKILL);
      while (::waitpid(child, nullptr, __WALL) < 0 && errno == EINTR) {
      }
      return;
    }
    const timespec pause{0, kLook};
    ::nanosleep(&pause, nullptr);
  }
}

}  // namespace

void StackSource::Set(int talk, int signal, int fd, Requests requests) {
  std::lock_guard lock(mutex_);
  talk_ = talk;
  signal_ = signal;
  fd_ = fd;
  if (requests != nullptr) heard_.store(requests(), std::memory_order_relaxed);
  requests_.store(requests, std::memory_order_release);
}

std::string StackSource::Take() {
  std::lock_guard lock(mutex_);
  if (!AskInterpreter()) return AskHandler();
  if (std::optional<std::string> answer = HearInterpreter(NowNs() + kAnswerLimit))
    return *std::move(answer);
  std::string written = AskHandler();
  return HearInterpreter(NowNs()).value_or(std::move(written));
}

bool StackSource::AskInterpreter() {
  const uint32_t question = ++questions_;
  return talk_ >= 0 &&
         ::send(talk_, &question, sizeof question, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof question;
}

// The answers to earlier questions, which came too late, are still to be read.
std::optional<std::string> StackSource::HearInterpreter(int64_t deadline_ns) const {
  std::string packet(sizeof questions_ + kMostBytes, '\0');
  while (WaitReady(talk_, POLLIN, deadline_ns).ok()) {
    const ssize_t bytes = ::recv(talk_, packet.data(), packet.size(), MSG_DONTWAIT);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (bytes < static_cast<ssize_t>(sizeof questions_)) return std::nullopt;  // it has gone
    if (std::memcmp(packet.data(), &questions_, sizeof questions_) != 0) continue;
    return packet.substr(sizeof questions_, static_cast<size_t>(bytes) - sizeof questions_);
  }
  return std::nullopt;
}

// The lock's holder is in one long call, or many threads take turns at it, and then stacks move
// while they are read: so a child reads its copy. No fork(): handlers that others have registered
// for it may want what a thread of this process holds. It signals nobody as it ends, for the script
// may have a handler for children of its own.
std::string StackSource::AskHandler() const {
  if (fd_ < 0 || !IsHandled(signal_) || ::ftruncate(fd_, 0) != 0) return "";
  const auto child = static_cast<pid_t>(::syscall(SYS_clone, 0, nullptr, nullptr, nullptr, 0));
  if (child == 0) RaiseAndEnd(signal_);
  if (child < 0) return "";
  AwaitEnd(child);
  return ContentsOf(fd_);
}

bool StackSource::WasAsked() {
  const Requests requests = requests_.load(std::memory_order_acquire);
  if (requests == nullptr) return false;
  const uint32_t now = requests();
  return heard_.exchange(now, std::memory_order_relaxed) != now;
}

std::string MainStackOf(const std::string& text) {
  std::vector<std::string> frames;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("Thread ") || line.starts_with("Current thread ")) frames.clear();
    if (line == kTooMany) return "";
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
