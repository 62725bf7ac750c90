#include "support/inproc_data.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "support/inproc_letters.h"

namespace horoacc {

using inproc::Copy;
using inproc::Length;
using inproc::Letter;
using inproc::LinkName;
using inproc::Mailbox;
using inproc::Queue;
using inproc::Ring;
using inproc::Sent;

struct InprocDataHub::State {
  State(int size, const InprocDataOptions& how)
      : options(how), boxes(size), bytes(static_cast<size_t>(size) * size) {}
  [[nodiscard]] std::atomic<uint64_t>& BytesOf(int sender, int receiver) {
    return bytes[sender * boxes.size() + receiver];
  }

  const InprocDataOptions options;
  std::vector<Mailbox> boxes;
  std::mutex leaving;
  std::vector<std::atomic<uint64_t>> bytes;  ///< by sender and receiver
};

class InprocDataHub::Links final : public DataLinks {
 public:
  Links(std::shared_ptr<State> state, int rank)
      : state_(std::move(state)),
        rank_(rank),
        random_(state_->options.seed * 977 + static_cast<uint32_t>(rank)) {
    std::scoped_lock lock(box().mutex);
    box().open = true;
  }
  ~Links() override {
    {
      // Who leaves because this rank does is behind it in every mailbox.
      std::scoped_lock leaving(state_->leaving);
      for (Mailbox& other : state_->boxes) {
        if (&other == &box()) continue;
        std::scoped_lock lock(other.mutex);
        other.left.push_back(rank_);
        Ring(other);
      }
    }
    std::scoped_lock lock(box().mutex);
    box().open = false;
    box().letters.clear();
  }

  Result<std::unique_ptr<SendLink>> OpenSend(const LinkSpec& spec) override;
  Result<std::unique_ptr<ReceiveLink>> OpenReceive(const LinkSpec& spec) override;

  std::vector<int> TakeCallers() override { return std::exchange(callers_, {}); }

  Result<bool> Progress() override {
    std::deque<Letter> letters;
    std::vector<int> left;
    bool rang = false;
    {
      std::scoped_lock lock(box().mutex);
      uint64_t count = 0;
      // Fails if the doorbell is silent.
      rang = ::read(box().doorbell.get(), &count, sizeof count) > 0;
      letters.swap(box().letters);
      if (box().failed) error_ = box().failed;
      left = box().left;
      if (!error_ && letters.empty() && left.empty()) return rang;
    }
    for (const int rank : left) {
      if (!error_ && Misses(rank)) error_ = Closed(rank);
    }
    if (error_) return *error_;
    if (letters.empty()) return rang;
    for (Letter& letter : letters) {
      Queue& queue = queues_[letter.link];
      if (!queue.open && queue.letters.empty() && letter.link.collective.calls())
        callers_.push_back(letter.link.sender);
      if (queue.letters.empty()) queue.delay = Delay();
      queue.letters.push_back(std::move(letter));
    }
    return true;
  }

  void Abort(const Error& error) override {
    if (!error_) error_ = error;
    Fail(error);
  }

  [[nodiscard]] int WaitFd() const override { return state_->boxes[rank_].doorbell.get(); }
  /// Delays end without a sign.
  [[nodiscard]] bool MustPoll() const override { return state_->options.longest_delay > 0; }
  [[nodiscard]] const char* kind() const override { return "inproc"; }
  [[nodiscard]] DataCounters counters() const override { return counters_; }

 private:
  friend class Sender;
  friend class Receiver;

  [[nodiscard]] Mailbox& box() const { return state_->boxes[rank_]; }
  uint32_t Delay() {
    const uint32_t longest = state_->options.longest_delay;
    return longest == 0 ? 0 : static_cast<uint32_t>(random_() % (longest + 1));
  }
  bool Toss() { return random_() % 2 == 0; }

  Status CheckPeer(int peer) const {
    if (error_) return *error_;
    if (peer >= 0 && peer < static_cast<int>(state_->boxes.size()) && peer != rank_) return {};
    return MakeError(ErrorKind::kInvalid, "no data link to rank " + std::to_string(peer));
  }
  /// Is a link of a collective to or from the rank open? Otherwise nobody misses it.
  [[nodiscard]] bool Misses(int rank) const {
    const auto leads = [&](const LinkName& name) {
      return name.sender == rank && !name.collective.standing();
    };
    return std::ranges::any_of(
               queues_, [&](const auto& item) { return leads(item.first) && item.second.open; }) ||
           std::ranges::any_of(sending_, [&](const auto& item) { return leads(item.first); });
  }
  static Error Closed(int rank) {
    return MakeError(ErrorKind::kPeerLost,
                     "rank " + std::to_string(rank) + " closed its data links", rank);
  }
  void Fail(const Error& error) const {
    for (Mailbox& other : state_->boxes) {
      std::scoped_lock lock(other.mutex);
      if (other.open && !other.failed) other.failed = error;
      Ring(other);
    }
  }

  std::shared_ptr<State> state_;
  const int rank_;
  std::mt19937 random_;
  std::map<LinkName, Queue> queues_;
  std::map<LinkName, int> sending_;  ///< open ends; `sender` is the receiver here
  std::vector<int> callers_;
  std::optional<Error> error_;
  DataCounters counters_;
};

class InprocDataHub::Sender final : public SendLink {
 public:
  Sender(Links& links, const LinkSpec& spec)
      : SendLink(spec.slots),
        links_(links),
        spec_(spec),
        sent_(std::make_shared<Sent>(spec.slots)) {}
  ~Sender() override { links_.sending_.erase({spec_.collective, spec_.peer, spec_.channel}); }

  uint64_t taken() override { return sent_->taken.load(std::memory_order_acquire); }
  Result<std::byte*> Slot() override {
    std::vector<std::byte>& slot = sent_->slots[posted() % spec_.slots];
    slot.resize(spec_.slot_bytes + kAlign);
    const auto address = reinterpret_cast<uintptr_t>(slot.data());
    return slot.data() + (kAlign - address % kAlign) % kAlign;
  }

 private:
  static constexpr size_t kAlign = 64;

  Status DoPost(uint64_t number, SendPieces pieces) override {
    if (links_.error_) return *links_.error_;
    const uint64_t bytes = Length(pieces);
    if (bytes > spec_.slot_bytes) {
      return MakeError(ErrorKind::kInvalid, "a message of " + std::to_string(bytes) +
                                                " bytes on a link for " +
                                                std::to_string(spec_.slot_bytes));
    }
    Letter letter{{spec_.collective, links_.rank_, spec_.channel},
                  number,
                  bytes,
                  {pieces.begin(), pieces.end()},
                  sent_,
                  {}};
    // Of a link that outlives its sender's calls: a rank that leaves frees what it has posted.
    if (links_.state_->options.network && spec_.collective.standing()) {
      letter.copied.resize(bytes);
      Copy(pieces, letter.copied.data());
      letter.pieces.assign(1, letter.copied);
    }
    Mailbox& box = links_.state_->boxes[spec_.peer];
    std::scoped_lock lock(box.mutex);
    box.letters.push_back(std::move(letter));
    Ring(box);
    links_.state_->BytesOf(links_.rank_, spec_.peer).fetch_add(bytes, std::memory_order_relaxed);
    ++links_.counters_.messages;
    links_.counters_.bytes += bytes;
    return {};
  }

  Links& links_;
  const LinkSpec spec_;
  std::shared_ptr<Sent> sent_;
};

class InprocDataHub::Receiver final : public ReceiveLink {
 public:
  Receiver(Links& links, const LinkSpec& spec)
      : links_(links),
        spec_(spec),
        name_{spec.collective, spec.peer, spec.channel},
        queue_(links.queues_[name_]) {
    queue_.open = true;
  }
  ~Receiver() override { links_.queues_.erase(name_); }

  Status Expect(uint64_t bytes, ReceivePieces where) override {
    if (links_.error_) return *links_.error_;
    if (queue_.announced.size() >= spec_.slots) {
      return MakeError(ErrorKind::kInvalid, "more messages were announced than there are slots");
    }
    queue_.announced.push_back({bytes, {where.begin(), where.end()}});
    return {};
  }

  Result<const Arrival*> Arrived() override {
    if (links_.error_) return *links_.error_;
    if (here_) return &arrival_;
    if (queue_.announced.empty() || queue_.letters.empty()) return nullptr;
    if (queue_.delay > 0) {
      --queue_.delay;
      return nullptr;
    }
    const Letter& letter = queue_.letters.front();
    const Queue::Announced& announced = queue_.announced.front();
    if (letter.number != queue_.released || letter.bytes != announced.bytes) {
      return MakeError(ErrorKind::kMismatch,
                       NameOfMessage(spec_.collective, spec_.channel, letter.number, spec_.peer) +
                           " has " + std::to_string(letter.bytes) + " bytes, and rank " +
                           std::to_string(links_.rank_) + " waits for message " +
                           std::to_string(queue_.released) + " of " +
                           std::to_string(announced.bytes),
                       spec_.peer);
    }
    Show(letter, announced);
    here_ = true;
    return &arrival_;
  }

  void Release() override {
    const Letter letter = std::move(queue_.letters.front());
    queue_.letters.pop_front();
    queue_.announced.pop_front();
    ++queue_.released;
    queue_.delay = links_.Delay();
    here_ = false;
    staged_.clear();
    letter.sent->taken.store(queue_.released, std::memory_order_release);
    Mailbox& box = links_.state_->boxes[spec_.peer];
    std::scoped_lock lock(box.mutex);
    Ring(box);
  }

 private:
  void Show(const Letter& letter, const Queue::Announced& announced) {
    pieces_.assign(letter.pieces.begin(), letter.pieces.end());
    arrival_.placed = false;
    if (links_.state_->options.network) {
      staged_.resize(letter.bytes);
      Copy(letter.pieces, staged_.data());
      arrival_.placed = !announced.where.empty() && links_.Toss();
      pieces_.assign(1, staged_);
    }
    if (arrival_.placed) {
      size_t at = 0;
      pieces_.clear();
      for (const auto& piece : announced.where) {
        if (!piece.empty()) std::memcpy(piece.data(), staged_.data() + at, piece.size());
        at += piece.size();
        pieces_.emplace_back(piece);
      }
    }
    arrival_.pieces = pieces_;
  }

  Links& links_;
  const LinkSpec spec_;
  const LinkName name_;
  Queue& queue_;
  bool here_ = false;
  Arrival arrival_;
  std::vector<std::span<const std::byte>> pieces_;
  std::vector<std::byte> staged_;
};

Result<std::unique_ptr<SendLink>> InprocDataHub::Links::OpenSend(const LinkSpec& spec) {
  HA_TRY(CheckPeer(spec.peer));
  if (!sending_.insert({{spec.collective, spec.peer, spec.channel}, 0}).second) {
    return MakeError(ErrorKind::kInvalid, "the link is open already");
  }
  return std::unique_ptr<SendLink>(std::make_unique<Sender>(*this, spec));
}

Result<std::unique_ptr<ReceiveLink>> InprocDataHub::Links::OpenReceive(const LinkSpec& spec) {
  HA_TRY(CheckPeer(spec.peer));
  if (queues_[{spec.collective, spec.peer, spec.channel}].open) {
    return MakeError(ErrorKind::kInvalid, "the link is open already");
  }
  return std::unique_ptr<ReceiveLink>(std::make_unique<Receiver>(*this, spec));
}

Result<std::shared_ptr<InprocDataHub>> InprocDataHub::Create(int size,
                                                             const InprocDataOptions& options) {
  if (size < 1) return MakeError(ErrorKind::kInvalid, "a job needs at least one rank");
  auto state = std::make_shared<State>(size, options);
  for (Mailbox& box : state->boxes) {
    box.doorbell = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!box.doorbell) return SystemError("eventfd");
  }
  return std::shared_ptr<InprocDataHub>(new InprocDataHub(std::move(state)));
}

InprocDataHub::InprocDataHub(std::shared_ptr<State> state) : state_(std::move(state)) {}
InprocDataHub::~InprocDataHub() = default;

uint64_t InprocDataHub::BytesBetween(int sender, int receiver) const {
  return state_->BytesOf(sender, receiver).load(std::memory_order_relaxed);
}

std::unique_ptr<DataLinks> InprocDataHub::MakeLinks(int rank) {
  return std::make_unique<Links>(state_, rank);
}

}  // namespace horoacc
