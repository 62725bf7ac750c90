#include "transport/data/data_links.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "transport/net/fd.h"

namespace horoacc {
namespace {

class Mix final : public DataLinks {
 public:
  Mix(std::vector<std::unique_ptr<DataLinks>> parts, std::vector<int> part_of)
      : parts_(std::move(parts)), part_of_(std::move(part_of)) {}

  /// One descriptor for all parts.
  Status Watch() {
    std::vector<int> fds;
    for (const auto& part : parts_) {
      if (part->WaitFd() >= 0) fds.push_back(part->WaitFd());
    }
    if (fds.size() == 1) wait_fd_ = fds.front();
    if (fds.size() < 2) return {};
    epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll_) return SystemError("epoll_create1");
    for (const int fd : fds) {
      epoll_event event{.events = EPOLLIN, .data = {}};
      if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
        return SystemError("epoll_ctl");
      }
    }
    wait_fd_ = epoll_.get();
    return {};
  }

  Result<std::unique_ptr<SendLink>> OpenSend(const LinkSpec& spec) override {
    HA_ASSIGN(DataLinks* const part, PartOf(spec.peer));
    return part->OpenSend(spec);
  }
  Result<std::unique_ptr<ReceiveLink>> OpenReceive(const LinkSpec& spec) override {
    HA_ASSIGN(DataLinks* const part, PartOf(spec.peer));
    return part->OpenReceive(spec);
  }
  std::vector<int> TakeCallers() override {
    std::vector<int> callers;
    for (const auto& part : parts_) {
      const std::vector<int> some = part->TakeCallers();
      callers.insert(callers.end(), some.begin(), some.end());
    }
    return callers;
  }

  /// An error of one part ends the other parts: a collective needs them all.
  Result<bool> Progress() override {
    bool moved = false;
    for (const auto& part : parts_) {
      Result<bool> progress = part->Progress();
      if (!progress.ok()) {
        if (!aborted_) Abort(progress.error());
        return std::move(progress.error());
      }
      moved |= progress.value();
    }
    return moved;
  }
  [[nodiscard]] bool HasUnsent() override {
    return std::ranges::any_of(parts_, [](const auto& part) { return part->HasUnsent(); });
  }
  void LeaveToParent() override {
    for (const auto& part : parts_) part->LeaveToParent();
  }
  void Abort(const Error& error) override {
    aborted_ = true;
    for (const auto& part : parts_) part->Abort(error);
  }
  [[nodiscard]] int WaitFd() const override { return wait_fd_; }
  [[nodiscard]] bool MustPoll() const override {
    return std::ranges::any_of(parts_, [](const auto& part) { return part->MustPoll(); });
  }
  [[nodiscard]] const char* kind() const override { return "mix"; }
  [[nodiscard]] DataCounters counters() const override {
    DataCounters sum;
    for (const auto& part : parts_) {
      const DataCounters one = part->counters();
      sum.messages += one.messages;
      sum.bytes += one.bytes;
      sum.copied += one.copied;
    }
    return sum;
  }

 private:
  Result<DataLinks*> PartOf(int peer) const {
    const bool known = peer >= 0 && peer < static_cast<int>(part_of_.size()) && part_of_[peer] >= 0;
    if (known) return parts_[part_of_[peer]].get();
    return MakeError(ErrorKind::kInvalid, "no data link to rank " + std::to_string(peer));
  }

  std::vector<std::unique_ptr<DataLinks>> parts_;
  std::vector<int> part_of_;  ///< by rank
  Fd epoll_;
  int wait_fd_ = -1;
  bool aborted_ = false;
};

}  // namespace

std::string NameOfMessage(const CollectiveId& collective, uint8_t channel, uint64_t number,
                          int sender) {
  return "collective " + std::to_string(collective.sequence) + " of set " +
         std::to_string(collective.set) + ", channel " + std::to_string(channel) + ", message " +
         std::to_string(number) + " from rank " + std::to_string(sender);
}

Result<std::unique_ptr<DataLinks>> MixDataLinks(std::vector<std::unique_ptr<DataLinks>> parts,
                                                std::vector<int> part_of) {
  for (const int part : part_of) {
    if (part >= static_cast<int>(parts.size())) {
      return MakeError(ErrorKind::kInvalid, "a rank is led to by a kind of links that is missing");
    }
  }
  auto mix = std::make_unique<Mix>(std::move(parts), std::move(part_of));
  HA_TRY(mix->Watch());
  return std::unique_ptr<DataLinks>(std::move(mix));
}

}  // namespace horoacc
