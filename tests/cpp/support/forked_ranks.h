#pragma once
// Ranks as real processes, for tests of what only processes show.
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <vector>

#include "base/clock.h"
#include "transport/net/fd.h"
#include "transport/net/socket.h"

namespace horoacc {

/// A child process that is killed and reaped with its object.
class ForkedRank {
 public:
  explicit ForkedRank(const std::function<int()>& body) : pid_(::fork()) {
    if (pid_ == 0) ::_exit(body());
    pidfd_ = Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  }
  ForkedRank(ForkedRank&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), pidfd_(std::move(other.pidfd_)) {}
  ForkedRank& operator=(ForkedRank&&) = delete;
  ~ForkedRank() {
    if (pid_ <= 0) return;
    Kill();
    ::waitpid(pid_, nullptr, 0);
  }

  [[nodiscard]] int pid() const { return pid_; }
  void Kill() const { ::kill(pid_, SIGKILL); }
  void Signal(int number) const { ::kill(pid_, number); }
  /// Whether a signal has stopped it.
  [[nodiscard]] bool Stopped() const {
    int status = 0;
    return ::waitpid(pid_, &status, WUNTRACED | WNOHANG) == pid_ && WIFSTOPPED(status);
  }

  /// What the body returned; 1000 + the signal that ended it; -1 if it still runs at the deadline.
  int Await(int64_t deadline_ns) {
    if (!WaitReady(pidfd_.get(), POLLIN, deadline_ns).ok()) return -1;
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

 private:
  pid_t pid_;
  Fd pidfd_;
};

/// Runs `body` in `size` processes and gives what each returned.
inline std::vector<int> RunForked(int size, const std::function<int(int rank)>& body) {
  std::vector<ForkedRank> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.emplace_back([&body, rank] { return body(rank); });
  std::vector<int> codes;
  const int64_t deadline = NowNs() + 60 * kSecond;
  for (ForkedRank& rank : ranks) codes.push_back(rank.Await(deadline));
  return codes;
}

/// A listening socket on a free port of the loopback interface, and its address.
struct FreePort {
  FreePort() {
    auto any = ResolveAddress("127.0.0.1:0");
    listener = std::move(Listen(any.value().front(), 256)).value();
    address = LocalAddress(listener.get()).value().ToString();
  }
  Fd listener;
  std::string address;
};

}  // namespace horoacc
