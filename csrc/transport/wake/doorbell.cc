#include "transport/wake/doorbell.h"

#include <sys/epoll.h>
#include <unistd.h>

#include "transport/wake/doorbell_rules.h"

namespace horoacc {

auto Doorbells::Waker(int local_rank) const {
  return [this, local_rank](std::atomic<uint32_t>& announced, uint32_t how) {
    if (how == doorbell::kOnFutex) FutexWakeAll(announced);
    if (how == doorbell::kInPoll && wake_[local_rank]) {
      const uint64_t one = 1;
      [[maybe_unused]] const ssize_t written = ::write(wake_[local_rank]->get(), &one, sizeof one);
    }
  };
}

void Doorbells::Ring(int local_rank, Urgency urgency) const {
  doorbell::Ring(doorbells_[local_rank], urgency == Urgency::kWork, Waker(local_rank));
}

void Doorbells::WakeCoordinator(int local_rank) const {
  doorbell::WakeCoordinator(doorbells_[local_rank], Waker(local_rank));
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
         doorbells_[local_rank].coordinator.load(std::memory_order_seq_cst) != doorbell::kInPoll;
}

void Doorbells::Sleep(std::atomic<uint32_t>& announced, const std::atomic<uint32_t>& word,
                      uint32_t seen, int64_t timeout_ns, int poll_fd) {
  const uint32_t how = poll_fd >= 0 ? doorbell::kInPoll : doorbell::kOnFutex;
  doorbell::SleepOn(announced, word, seen, how, [&] {
    if (poll_fd < 0) return (void)FutexWait(announced, how, timeout_ns);
    epoll_event woken[2];
    (void)::epoll_wait(poll_fd, woken, 2, static_cast<int>((timeout_ns + 999'999) / 1'000'000));
  });
}

}  // namespace horoacc
