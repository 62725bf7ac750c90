#include "transport/wake/doorbell.h"

#include <sys/epoll.h>
#include <unistd.h>

namespace horoacc {
namespace {

constexpr uint32_t kAwake = 0;
constexpr uint32_t kOnFutex = 1;
constexpr uint32_t kInPoll = 2;

}  // namespace

// Store-then-load on both sides (ring: bump the count, then look for sleepers; sleep: announce,
// then look at the count) needs sequential consistency, or both could miss each other. A ringer
// clears the announcement, perhaps one made after its ring: so the sleeper waits on the
// announcement, because the count would not change again.

void Doorbells::Ring(int local_rank, Urgency urgency) const {
  Doorbell& doorbell = doorbells_[local_rank];
  doorbell.count.fetch_add(1, std::memory_order_seq_cst);
  if (doorbell.waiter.load(std::memory_order_seq_cst) != kAwake) {
    Wake(local_rank, doorbell.waiter);
  }
  if (urgency == Urgency::kWork && doorbell.driven.load(std::memory_order_seq_cst) == 0) {
    WakeCoordinator(local_rank);
  }
}

void Doorbells::WakeCoordinator(int local_rank) const {
  Doorbell& doorbell = doorbells_[local_rank];
  doorbell.coordinator_word.fetch_add(1, std::memory_order_seq_cst);
  if (doorbell.coordinator.load(std::memory_order_seq_cst) == kAwake) return;
  Wake(local_rank, doorbell.coordinator);
}

void Doorbells::Wake(int local_rank, std::atomic<uint32_t>& state) const {
  const uint32_t how = state.exchange(kAwake, std::memory_order_seq_cst);
  if (how == kOnFutex) FutexWakeAll(state);
  if (how == kInPoll && wake_[local_rank]) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_[local_rank]->get(), &one, sizeof one);
  }
}

void Doorbells::Release() {
  for (auto& wake : wake_) wake.reset();
  waiter_poll_ = Fd();
  coordinator_poll_ = Fd();
}

Status Doorbells::WatchLinks(int local_rank, std::span<const int> link_fds) {
  for (Fd* poll : {&waiter_poll_, &coordinator_poll_}) {
    *poll = Fd(::epoll_create1(EPOLL_CLOEXEC));
    if (!*poll) return SystemError("epoll_create1");
    for (const int fd : link_fds) {
      epoll_event links{};
      links.events = EPOLLIN;
      if (::epoll_ctl(poll->get(), EPOLL_CTL_ADD, fd, &links) != 0) return SystemError("epoll_ctl");
    }
    epoll_event doorbell{};
    doorbell.events = EPOLLIN | EPOLLET;
    if (::epoll_ctl(poll->get(), EPOLL_CTL_ADD, wake_[local_rank]->get(), &doorbell) != 0)
      return SystemError("epoll_ctl");
  }
  return {};
}

void Doorbells::SleepAsWaiter(int local_rank, uint32_t seen, int64_t timeout_ns) const {
  Doorbell& doorbell = doorbells_[local_rank];
  Sleep(doorbell.waiter, doorbell.count, seen, timeout_ns, waiter_poll_.get());
}

void Doorbells::SleepAsCoordinator(int local_rank, uint32_t seen, int64_t timeout_ns,
                                   bool with_links) const {
  Doorbell& doorbell = doorbells_[local_rank];
  Sleep(doorbell.coordinator, doorbell.coordinator_word, seen, timeout_ns,
        with_links ? coordinator_poll_.get() : -1);
}

bool Doorbells::CoordinatorIsDeaf(int local_rank) const {
  return coordinator_poll_ &&
         doorbells_[local_rank].coordinator.load(std::memory_order_seq_cst) != kInPoll;
}

void Doorbells::Sleep(std::atomic<uint32_t>& state, const std::atomic<uint32_t>& word,
                      uint32_t seen, int64_t timeout_ns, int poll_fd) {
  state.store(poll_fd >= 0 ? kInPoll : kOnFutex, std::memory_order_seq_cst);
  if (word.load(std::memory_order_seq_cst) == seen) {
    if (poll_fd < 0) {
      FutexWait(state, kOnFutex, timeout_ns);
    } else {
      epoll_event woken[2];
      ::epoll_wait(poll_fd, woken, 2, static_cast<int>((timeout_ns + 999'999) / 1'000'000));
    }
  }
  state.store(kAwake, std::memory_order_seq_cst);
}

}  // namespace horoacc
