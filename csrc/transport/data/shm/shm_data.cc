#include "transport/data/shm/shm_data.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <new>
#include <string>
#include <utility>

#include "transport/data/shm/shm_exchange.h"
#include "transport/data/slot_memory.h"

namespace horoacc {
namespace {

class ShmSender final : public SendLink {
 public:
  ShmSender(ShmExchange& links, const LinkSpec& spec, ShmLinkName name, void* block)
      : SendLink(spec.slots), links_(links), spec_(spec), name_(name), block_(block) {
    slots_ = static_cast<ShmSlot*>(block);
    for (uint32_t k = 0; k < spec.slots; ++k) new (&slots_[k]) ShmSlot;
  }
  ~ShmSender() override {
    links_.sending.erase(name_);
    const bool over = taken() == posted();
    links_.Free(block_, over);
    if (bytes_ != nullptr) links_.Free(bytes_, over);
  }

  uint64_t taken() override {
    // Messages are taken in order, and no slot is reused before its message is taken.
    while (taken_ < posted()) {
      const ShmSlot& slot = slots_[taken_ % spec_.slots];
      if (slot.taken.load(std::memory_order_acquire) != taken_ + 1) break;
      ++taken_;
    }
    return taken_;
  }

  Result<std::byte*> Slot() override {
    if (bytes_ == nullptr) {
      HA_ASSIGN(bytes_, links_.Allocate(SlotBytes() * spec_.slots));
    }
    return static_cast<std::byte*>(bytes_) + posted() % spec_.slots * SlotBytes();
  }

 private:
  [[nodiscard]] uint64_t SlotBytes() const {
    return std::max<uint64_t>(64, (spec_.slot_bytes + 63) / 64 * 64);
  }

  Status DoPost(uint64_t number, SendPieces pieces) override {
    if (links_.error) return *links_.error;
    uint64_t bytes = 0;
    size_t parts = 0;
    bool shared = true;
    for (const auto& piece : pieces) {
      bytes += piece.size();
      if (piece.empty()) continue;
      ++parts;
      shared = shared && links_.MemoryOf(links_.me()).Contains(piece.data());
    }
    HA_TRY(CheckPost(spec_, number, taken(), bytes));
    ShmSlot& slot = slots_[number % spec_.slots];
    slot.sequence = spec_.collective.sequence;
    slot.set = spec_.collective.set;
    slot.channel = spec_.channel;
    slot.number = number;
    slot.bytes = bytes;
    slot.pieces = 0;
    if (shared && parts <= kShmPieces) {
      for (const auto& piece : pieces) {
        if (piece.empty()) continue;
        slot.offset[slot.pieces] = links_.OffsetOf(piece.data());
        slot.length[slot.pieces++] = piece.size();
      }
    } else {
      HA_ASSIGN(std::byte* const to, Slot());
      uint64_t at = 0;
      for (const auto& piece : pieces) {
        if (!piece.empty()) std::memcpy(to + at, piece.data(), piece.size());
        at += piece.size();
      }
      slot.offset[0] = links_.OffsetOf(to);
      slot.length[0] = bytes;
      slot.pieces = 1;
      links_.counters.copied += bytes;
    }
    ++links_.counters.messages;
    links_.counters.bytes += bytes;
    links_.Note(name_.peer, slot);
    return {};
  }

  ShmExchange& links_;
  const LinkSpec spec_;
  const ShmLinkName name_;
  void* block_;
  void* bytes_ = nullptr;
  ShmSlot* slots_;
  uint64_t taken_ = 0;
};

class ShmReceiver final : public ReceiveLink {
 public:
  ShmReceiver(ShmExchange& links, const LinkSpec& spec, ShmLinkName name)
      : links_(links), spec_(spec), name_(name), incoming_(links.incoming[name]) {
    incoming_.open = true;
  }
  ~ShmReceiver() override { links_.incoming.erase(name_); }

  Status Expect(uint64_t bytes, ReceivePieces where) override {
    if (links_.error) return *links_.error;
    HA_TRY(CheckExpect(spec_, announced_.size(), bytes, where));
    announced_.push_back(bytes);
    return {};
  }

  Result<const Arrival*> Arrived() override {
    if (links_.error) return *links_.error;
    if (here_) return &arrival_;
    if (announced_.empty() || incoming_.slots.empty()) return nullptr;
    const ShmSlot& slot = *incoming_.slots.front();
    if (slot.number != released_ || slot.bytes != announced_.front() || slot.pieces > kShmPieces) {
      return MakeError(ErrorKind::kMismatch,
                       NameOfMessage(spec_.collective, spec_.channel, slot.number, spec_.peer) +
                           " has " + std::to_string(slot.bytes) + " bytes, and rank " +
                           std::to_string(links_.RankOf(links_.me())) + " waits for message " +
                           std::to_string(released_) + " of " + std::to_string(announced_.front()),
                       spec_.peer);
    }
    const Segment& memory = links_.MemoryOf(name_.peer);
    for (uint32_t k = 0; k < slot.pieces; ++k) {
      if (slot.offset[k] > memory.size() || slot.length[k] > memory.size() - slot.offset[k]) {
        return MakeError(
            ErrorKind::kMismatch,
            "rank " + std::to_string(spec_.peer) + " sends a message that is not in its memory",
            spec_.peer);
      }
      pieces_[k] = {memory.data() + slot.offset[k], slot.length[k]};
    }
    arrival_ = {{pieces_, slot.pieces}, false};
    here_ = true;
    return &arrival_;
  }

  void Release() override {
    ShmSlot* slot = incoming_.slots.front();
    incoming_.slots.pop_front();
    announced_.pop_front();
    here_ = false;
    slot->taken.store(++released_, std::memory_order_release);
    links_.Ring(name_.peer);
  }

 private:
  ShmExchange& links_;
  const LinkSpec spec_;
  const ShmLinkName name_;
  ShmIncoming& incoming_;
  std::deque<uint64_t> announced_;
  uint64_t released_ = 0;
  bool here_ = false;
  Arrival arrival_;
  std::span<const std::byte> pieces_[kShmPieces];
};

class ShmDataLinks final : public DataLinks {
 public:
  explicit ShmDataLinks(const ShmDataOptions& options)
      : exchange_(*options.share, reinterpret_cast<ShmRing*>(options.control), *options.arena,
                  *options.doorbells, options.has_left) {}

  Result<std::unique_ptr<SendLink>> OpenSend(const LinkSpec& spec) override {
    HA_ASSIGN(const ShmLinkName name, NameOf(spec));
    if (exchange_.sending.contains(name)) return OpenAlready();
    HA_ASSIGN(void* const block, exchange_.Allocate(spec.slots * sizeof(ShmSlot)));
    exchange_.sending.insert(name);
    return std::unique_ptr<SendLink>(std::make_unique<ShmSender>(exchange_, spec, name, block));
  }
  Result<std::unique_ptr<ReceiveLink>> OpenReceive(const LinkSpec& spec) override {
    HA_ASSIGN(const ShmLinkName name, NameOf(spec));
    if (exchange_.incoming[name].open) return OpenAlready();
    return std::unique_ptr<ReceiveLink>(std::make_unique<ShmReceiver>(exchange_, spec, name));
  }

  std::vector<int> TakeCallers() override { return std::exchange(exchange_.callers, {}); }

  Result<bool> Progress() override {
    if (exchange_.error) return *exchange_.error;
    Result<bool> moved = exchange_.Move();
    if (moved.ok() && !moved.value()) {
      if (Status lives = exchange_.LookForDeaths(); !lives.ok()) moved = std::move(lives.error());
    }
    if (!moved.ok()) exchange_.error = moved.error();
    return moved;
  }
  [[nodiscard]] bool HasUnsent() override { return exchange_.HasUnsent(); }
  void Abort(const Error& error) override {
    if (!exchange_.error) exchange_.error = error;
  }
  [[nodiscard]] int WaitFd() const override { return -1; }
  [[nodiscard]] const char* kind() const override { return "shm"; }
  [[nodiscard]] DataCounters counters() const override { return exchange_.counters; }

 private:
  Result<ShmLinkName> NameOf(const LinkSpec& spec) const {
    if (exchange_.error) return *exchange_.error;
    HA_ASSIGN(const int peer, exchange_.PlaceOf(spec.peer));
    return ShmLinkName{spec.collective, peer, spec.channel};
  }
  static Error OpenAlready() { return MakeError(ErrorKind::kInvalid, "the link is open already"); }

  ShmExchange exchange_;
};

}  // namespace

size_t ShmDataControlBytes(size_t local_ranks) {
  return local_ranks * local_ranks * sizeof(ShmRing);
}

Result<std::unique_ptr<DataLinks>> MakeShmDataLinks(const ShmDataOptions& options) {
  if (options.share == nullptr || options.control == nullptr || options.arena == nullptr ||
      options.doorbells == nullptr ||
      reinterpret_cast<uintptr_t>(options.control) % alignof(ShmRing) != 0) {
    return MakeError(ErrorKind::kInvalid,
                     "shared-memory links need a control segment, an arena and doorbells");
  }
  return std::unique_ptr<DataLinks>(std::make_unique<ShmDataLinks>(options));
}

}  // namespace horoacc
