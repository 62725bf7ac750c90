#pragma once
// What the framework handed over: one call, from submission until its handle is released.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/few.h"
#include "base/result.h"
#include "execute/cuda/host/device_call.h"
#include "negotiate/request.h"

namespace horoacc {

/// Memory that the engine allocated for a result. Freed with std::free.
struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};
using OwnedMemory = std::unique_ptr<void, FreeMemory>;

/// One tensor of an entry.
struct EntryTensor {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;  ///< the caller's, or `owned`
  std::byte* staged = nullptr;  ///< copy in shared memory, or nullptr
  bool stage_output = false;    ///< the result lies in `staged` and is copied to `output`
  OwnedMemory owned;
  Dims result_shape;
};

/// What this rank knows of a name: its id (looked up in the control segment once) and which call
/// holds it.
struct NameRecord {
  uint32_t id = 0;
  uint32_t id_version = 0;
  bool known = false;    ///< id and id_version are valid
  uint64_t held_by = 0;  ///< handle that reserves the name until it is released; 0: none
  uint32_t calls = 0;    ///< in flight or in the backlog
  /// What the submission after its last one was of: see Names.
  std::pair<const std::string, NameRecord>* followed_by = nullptr;
};

inline constexpr uint32_t kNoId = 0xffffffff;  ///< of an entry that is not negotiated by name

/// One call, of any kind.
struct Entry {
  enum class Kind : uint8_t { kCollective, kJoin, kMessage };

  explicit Entry(Kind which) : kind(which) {}
  virtual ~Entry() = default;
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  const Kind kind;
  uint32_t process_set = 0;
  uint32_t id = kNoId;  ///< of its name in the control segment
  uint64_t handle = 0;
  std::string display_name;  ///< as submitted: for messages and the timeline
  Few<EntryTensor> tensors;
  std::function<void()> done;  ///< the caller's callback; see TakeCallback
  int64_t submitted_ns = 0;
  uint64_t flight = 0;  ///< of the event with which the call began: see EventStream::Emit
  int64_t deadline_ns = std::numeric_limits<int64_t>::max();  ///< under the set's submit lock
  double limit_seconds = 0;
  bool linked = false;                      ///< waits for other hosts, or may do so
  bool waited_for = false;                  ///< under the set's submit lock: a caller waits for it
  std::atomic<int64_t> next_blocked_ns{0};  ///< when polling again counts as waiting again

  Status outcome;                     ///< valid once `complete`
  std::atomic<bool> complete{false};  ///< stored last
  std::atomic<int> waiters{0};        ///< callers that would run the callback themselves

  /// Called by the thread that completes the entry, and then by each waiter that leaves: one of
  /// them gets the callback. A waiter is awake, and any other thread has to be woken for it.
  [[nodiscard]] std::function<void()> TakeCallback() {
    if (callback_taken_.exchange(true, std::memory_order_acq_rel)) return nullptr;
    return std::move(done);
  }

 private:
  std::atomic<bool> callback_taken_{false};
};

/// A call in which all ranks of the process set take part.
struct CollectiveEntry final : Entry {
  CollectiveEntry() : Entry(Kind::kCollective) {}

  uint32_t id_version = 0;
  uint64_t generation = 0;
  uint32_t sync_round = 0;  ///< how often this rank had waited for results when it submitted this
  uint64_t number = 0;      ///< of an unnamed call: its number in the set
  bool named = false;       ///< ranks match it by `name()`
  std::string group_name;   ///< of a group's call: see GroupName
  Proposal proposal;
  bool agreed = false;  ///< once `complete`: all ranks have proposed the same
  Recurs recurs = Recurs::kNo;
  Request request;
  std::unique_ptr<cuda::DeviceCall> device;  ///< of tensors in a GPU's memory; else null
  std::vector<int64_t> received_splits;
  NameRecord* reservation = nullptr;  ///< of a named entry, in the set's queue
  std::byte* extra = nullptr;  ///< block of the arena that peers may read until they have finished
  uint32_t place = 0;          ///< in the set queue's list of what is in flight
  std::atomic<bool> decided{false};  ///< changes under the driver's lock
  bool begun = false;                ///< it runs, and may be dropped; under the driver's lock
  std::atomic<uint64_t> bucket{0};   ///< of what was decided: see ProcessSet::buckets_run
  bool released = false;             ///< under the set's submit lock: the handle is gone
  /// Of a refusal: the other ranks may need it only if these calls go well (IsMoot).
  std::vector<std::shared_ptr<CollectiveEntry>> doubts;
  /// Tells the other ranks that this one has left a locked plan; nobody waits for it here.
  [[nodiscard]] bool IsRefusal() const {
    return recurs == Recurs::kInPlan && !request.local_error.empty();
  }
  /// A refusal of a call that no other rank is going to make: one of `doubts` has failed, or not
  /// all ranks proposed the same with it.
  [[nodiscard]] bool IsMoot() const {
    return std::ranges::any_of(doubts, [](const auto& call) {
      return call->complete.load(std::memory_order_acquire) &&
             (!call->outcome.ok() || (call->proposal.plan != 0 && !call->agreed));
    });
  }
  /// By which ranks match it; empty if unnamed.
  [[nodiscard]] std::string_view name() const {
    if (!named) return {};
    return group_name.empty() ? display_name : group_name;
  }
  /// In full, once its shape is known.
  [[nodiscard]] uint64_t ResultBytes(size_t tensor) const {
    uint64_t bytes = SizeOf(request.tensors[tensor].type);
    for (const int64_t dim : tensors[tensor].result_shape) bytes *= static_cast<uint64_t>(dim);
    return bytes;
  }
  bool stall_reported = false;
  int64_t stacks_asked_ns = 0;  ///< when this rank asked the missing ranks for their stacks
};

/// A join that is over, on this rank.
struct JoinOver {
  int32_t last = 0;                ///< global rank
  std::atomic<bool> taken{false};  ///< a caller has this result
};

struct JoinEntry final : Entry {
  JoinEntry() : Entry(Kind::kJoin) {}

  std::shared_ptr<JoinOver> over;  ///< once it is complete
};

inline constexpr int kAnySource = -1;

/// A point-to-point call.
struct Message {
  bool sends = false;
  int peer = kAnySource;  ///< global rank of the other side
  int32_t tag = 0;
  uint64_t bytes = 0;
  int source = -1;  ///< of a receive that is complete: global rank of the sender
};

struct MessageEntry final : Entry {
  explicit MessageEntry(const Message& call) : Entry(Kind::kMessage), message(call) {}

  Message message;
};

/// The entry as one of the kinds, or null.
inline CollectiveEntry* AsCollective(Entry* entry) {
  return entry && entry->kind == Entry::Kind::kCollective ? static_cast<CollectiveEntry*>(entry)
                                                          : nullptr;
}
inline const CollectiveEntry* AsCollective(const Entry* entry) {
  return AsCollective(const_cast<Entry*>(entry));
}
inline JoinEntry* AsJoin(Entry* entry) {
  return entry && entry->kind == Entry::Kind::kJoin ? static_cast<JoinEntry*>(entry) : nullptr;
}
inline MessageEntry* AsMessage(Entry* entry) {
  return entry && entry->kind == Entry::Kind::kMessage ? static_cast<MessageEntry*>(entry)
                                                       : nullptr;
}

}  // namespace horoacc
