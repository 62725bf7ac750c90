#include "runtime/stack_source.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>
#include <vector>

#include "base/clock.h"
#include "transport/socket.h"

namespace horoacc {
namespace {

constexpr size_t kMostBytes = 64 << 10;
constexpr int64_t kPatience = 300 * kMillisecond;
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
  if (std::optional<std::string> answer = AskInterpreter()) return *std::move(answer);
  return AskHandler();
}

// The answers to earlier questions, which came too late, are still to be read.
std::optional<std::string> StackSource::AskInterpreter() {
  const uint32_t question = ++questions_;
  if (talk_ < 0 || ::send(talk_, &question, sizeof question, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
    return std::nullopt;
  const int64_t deadline = NowNs() + kPatience;
  std::string packet(sizeof question + kMostBytes, '\0');
  while (WaitReady(talk_, POLLIN, deadline).ok()) {
    const ssize_t bytes = ::recv(talk_, packet.data(), packet.size(), MSG_DONTWAIT);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (bytes < static_cast<ssize_t>(sizeof question)) return std::nullopt;  // it has gone
    if (std::memcmp(packet.data(), &question, sizeof question) != 0) continue;
    return packet.substr(sizeof question, static_cast<size_t>(bytes) - sizeof question);
  }
  return std::nullopt;
}

// Whoever holds the lock for so long is in one call: no stack moves while the handler reads it.
std::string StackSource::AskHandler() const {
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
