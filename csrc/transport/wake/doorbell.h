#pragma once
// How the ranks of a host wake each other.
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/futex.h"
#include "base/result.h"
#include "transport/net/fd.h"

namespace horoacc {

/// One rank's doorbell, in the control segment. Two threads may sleep on it: a caller that drives
/// the engine while it waits (`waiter`), and the background coordinator. While a caller drives, the
/// coordinator sleeps on: waking both for every message would cost a core.
struct alignas(64) Doorbell {
  std::atomic<uint32_t> count{0};        ///< rings so far: none is lost between two looks
  std::atomic<uint32_t> waiter{0};       ///< 1: asleep on this word, 2: in epoll
  std::atomic<uint32_t> driven{0};       ///< > 0: a caller drives this rank's engine
  std::atomic<uint32_t> coordinator{0};  ///< 1: asleep on this word, 2: in epoll
  std::atomic<uint32_t> coordinator_word{0};
};

enum class Urgency {
  kQuiet,  ///< wake only a caller that waits: the rank may see the message later
  kWork,   ///< the rank must take part: wake its coordinator if no caller drives
};

/// The doorbells of a host, as one rank sees them.
class Doorbells {
 public:
  Doorbells() = default;
  Doorbells(Doorbell* doorbells, std::vector<std::shared_ptr<Fd>> wake)
      : doorbells_(doorbells), wake_(std::move(wake)) {}

  void Ring(int local_rank, Urgency urgency) const;
  [[nodiscard]] Doorbell& doorbell(int local_rank) const { return doorbells_[local_rank]; }

  /// From now on this rank's sleepers also wake when one of `link_fds` is readable.
  Status WatchLinks(int local_rank, std::span<const int> link_fds);

  /// A caller sleeps until the count is not `seen`, or the time is over.
  void SleepAsWaiter(int local_rank, uint32_t seen, int64_t timeout_ns) const;
  /// The coordinator sleeps until a ring with kWork (or WakeCoordinator) after `seen`, a value of
  /// coordinator_word, or until the time is over. `with_links`: or until a message comes (not while
  /// a caller drives, which receives the messages).
  void SleepAsCoordinator(int local_rank, uint32_t seen, int64_t timeout_ns, bool with_links) const;
  /// True unless the coordinator sleeps and a message would wake it.
  [[nodiscard]] bool CoordinatorIsDeaf(int local_rank) const;
  void WakeCoordinator(int local_rank) const;
  /// Closes the descriptors. No thread sleeps here any more, and none needs waking.
  void Release();

 private:
  static void Sleep(std::atomic<uint32_t>& announced, const std::atomic<uint32_t>& word,
                    uint32_t seen, int64_t timeout_ns, int poll_fd);
  /// What ends the sleep that a thread of the rank has announced.
  [[nodiscard]] auto Waker(int local_rank) const;

  Doorbell* doorbells_ = nullptr;
  std::vector<std::shared_ptr<Fd>> wake_;
  // One epoll set for each sleeper, edge-triggered on the rank's eventfd, which is never drained:
  // if two sleepers drained it, one of them could miss its wake-up.
  Fd waiter_poll_;
  Fd coordinator_poll_;
};

}  // namespace horoacc
