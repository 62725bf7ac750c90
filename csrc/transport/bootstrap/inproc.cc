#include "transport/bootstrap/inproc.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "transport/bootstrap/gather_wire.h"

namespace horoacc {
namespace {

/// A message, or (`gone`) the end of its source's link.
struct Letter {
  ControlMessage message;
  bool gone = false;
};

struct Mailbox {
  std::mutex mutex;
  std::deque<Letter> letters;
  bool closed = false;
  std::set<int> peers;  ///< those with which messages were exchanged
  Fd doorbell;          ///< eventfd; readable while `letters` is not empty
};

/// The blobs that have come, rank 0's answers, and how many ranks have read theirs.
struct GatherRound {
  std::vector<std::optional<std::string>> blobs;
  std::vector<std::string> answers;
  int readers = 0;
};

Result<Fd> MakeEventFd() {
  Fd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd) return SystemError("eventfd");
  return fd;
}

void Ring(const Fd& doorbell) {
  const uint64_t one = 1;
  // Fails only if the counter is full, in which case the doorbell rings already.
  [[maybe_unused]] const ssize_t written = ::write(doorbell.get(), &one, sizeof(one));
}

void Silence(const Fd& doorbell) {
  uint64_t count = 0;
  // Fails only if the doorbell is silent already.
  [[maybe_unused]] const ssize_t got = ::read(doorbell.get(), &count, sizeof(count));
}

void Deliver(Mailbox& box, Letter letter) {
  box.letters.push_back(std::move(letter));
  Ring(box.doorbell);
}

}  // namespace

struct InprocHub::State {
  explicit State(int ranks) : size(ranks), mailboxes(ranks) {}

  const int size;

  std::mutex mutex;
  std::condition_variable changed;
  std::map<uint64_t, GatherRound> rounds;

  std::vector<Mailbox> mailboxes;

  Segment control;
  std::vector<Segment> memory;
  std::vector<std::shared_ptr<Fd>> wake;

  class Gatherer;
  class Links;
};

class InprocHub::State::Gatherer final : public Bootstrap {
 public:
  Gatherer(std::shared_ptr<State> state, int rank) : state_(std::move(state)), rank_(rank) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return state_->size; }

  Result<std::string> Round(const std::string& blob, const RawAnswers& answers,
                            int64_t deadline_ns) override {
    std::unique_lock lock(state_->mutex);
    GatherRound& round = state_->rounds[next_round_];
    round.blobs.resize(state_->size);
    round.blobs[rank_] = blob;
    state_->changed.notify_all();
    const auto complete = [&] {
      return rank_ != 0 ? !round.answers.empty()
                        : std::ranges::all_of(round.blobs, &std::optional<std::string>::has_value);
    };
    const std::chrono::steady_clock::time_point deadline{std::chrono::nanoseconds(deadline_ns)};
    if (!state_->changed.wait_until(lock, deadline, complete)) {
      std::vector<bool> present;
      for (const auto& one : round.blobs) present.push_back(one.has_value());
      if (std::ranges::find(present, false) == present.end()) present[0] = false;
      return StillMissing(present);
    }
    if (rank_ == 0) {
      std::vector<std::string> all;
      for (const auto& one : round.blobs) all.push_back(*one);
      round.answers = answers(std::move(all));
      state_->changed.notify_all();
    }
    std::string own = std::move(round.answers[rank_]);
    if (++round.readers == state_->size) state_->rounds.erase(next_round_);
    ++next_round_;
    return own;
  }

 private:
  std::shared_ptr<State> state_;
  int rank_;
  uint64_t next_round_ = 0;
};

class InprocHub::State::Links final : public ControlLinks {
 public:
  Links(std::shared_ptr<State> state, int rank) : state_(std::move(state)), rank_(rank) {}

  /// Peers with a link see the end as they see a closed socket: after every message sent before.
  ~Links() override {
    std::set<int> peers;
    {
      Mailbox& own = state_->mailboxes[rank_];
      std::scoped_lock lock(own.mutex);
      own.closed = true;
      own.letters.clear();
      peers.swap(own.peers);
    }
    for (const int peer : peers) {
      Mailbox& box = state_->mailboxes[peer];
      std::scoped_lock lock(box.mutex);
      if (!box.closed) Deliver(box, Letter{ControlMessage{rank_, {}}, true});
    }
  }

  Status Send(int peer, std::span<const std::byte> bytes) override {
    if (peer < 0 || peer >= state_->size || peer == rank_) {
      return MakeError(ErrorKind::kInvalid, "no control link to rank " + std::to_string(peer));
    }
    {
      Mailbox& own = state_->mailboxes[rank_];
      std::scoped_lock lock(own.mutex);
      own.peers.insert(peer);
    }
    Mailbox& box = state_->mailboxes[peer];
    std::scoped_lock lock(box.mutex);
    if (box.closed) return Lost(peer);
    box.peers.insert(rank_);
    Deliver(box, Letter{ControlMessage{rank_, {bytes.begin(), bytes.end()}}, false});
    ++messages_sent_;
    bytes_sent_ += bytes.size();
    return {};
  }

  Result<std::optional<ControlMessage>> Receive() override {
    Mailbox& box = state_->mailboxes[rank_];
    std::scoped_lock lock(box.mutex);
    if (box.letters.empty()) return std::optional<ControlMessage>();
    Letter letter = std::move(box.letters.front());
    box.letters.pop_front();
    if (box.letters.empty()) Silence(box.doorbell);
    if (letter.gone) return Lost(letter.message.source);
    return std::optional<ControlMessage>(std::move(letter.message));
  }

  [[nodiscard]] std::vector<int> peers() const override {
    Mailbox& own = state_->mailboxes[rank_];
    std::scoped_lock lock(own.mutex);
    return {own.peers.begin(), own.peers.end()};
  }
  [[nodiscard]] int WaitFd() const override { return state_->mailboxes[rank_].doorbell.get(); }
  [[nodiscard]] const char* kind() const override { return "inproc"; }
  [[nodiscard]] uint64_t messages_sent() const override { return messages_sent_; }
  [[nodiscard]] uint64_t bytes_sent() const override { return bytes_sent_; }

 private:
  [[nodiscard]] static Error Lost(int peer) {
    return MakeError(ErrorKind::kPeerLost,
                     "rank " + std::to_string(peer) + " closed its control link", peer);
  }

  std::shared_ptr<State> state_;
  int rank_;
  uint64_t messages_sent_ = 0;
  uint64_t bytes_sent_ = 0;
};

Result<std::shared_ptr<InprocHub>> InprocHub::Create(int size, size_t control_bytes,
                                                     size_t memory_bytes) {
  if (size < 1) return MakeError(ErrorKind::kInvalid, "a job needs at least one rank");
  auto state = std::make_shared<State>(size);
  HA_ASSIGN(state->control, Segment::Create("horoacc-control", control_bytes));
  for (int rank = 0; rank < size; ++rank) {
    HA_ASSIGN(state->mailboxes[rank].doorbell, MakeEventFd());
    HA_ASSIGN(Fd wake, MakeEventFd());
    state->wake.push_back(std::make_shared<Fd>(std::move(wake)));
    HA_ASSIGN(Segment memory, Segment::Create("horoacc-memory", memory_bytes));
    state->memory.push_back(std::move(memory));
  }
  return std::shared_ptr<InprocHub>(new InprocHub(std::move(state)));
}

InprocHub::InprocHub(std::shared_ptr<State> state) : state_(std::move(state)) {}

InprocHub::~InprocHub() = default;

int InprocHub::size() const { return state_->size; }

std::unique_ptr<Bootstrap> InprocHub::MakeBootstrap(int rank) {
  return std::make_unique<State::Gatherer>(state_, rank);
}

std::unique_ptr<ControlLinks> InprocHub::MakeControlLinks(int rank) {
  return std::make_unique<State::Links>(state_, rank);
}

HostShare InprocHub::MakeHostShare(int rank) {
  HostShare share;
  share.local_rank = rank;
  for (int each = 0; each < state_->size; ++each) share.ranks.push_back(each);
  share.control = state_->control;
  share.memory = state_->memory;
  share.wake = state_->wake;
  share.pidfds.resize(state_->size);
  return share;
}

}  // namespace horoacc
