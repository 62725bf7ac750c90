#pragma once
// Layout of the control segment, through which the ranks of one host agree without messages. It
// lies in zeroed shared memory, and has offsets, never pointers. Each part starts on a page of its
// own.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/page.h"
#include "base/result.h"
#include "execute/cuda/host/ticket.h"
#include "execute/shared_memory/exec_slot.h"
#include "fuse/plan.h"
#include "negotiate/control_segment/arrivals.h"
#include "negotiate/request.h"
#include "transport/wake/doorbell.h"

namespace horoacc {

inline constexpr uint32_t kNamedIds = 16384;   ///< names of a set that can be known at a time
inline constexpr uint32_t kUnnamedIds = 4096;  ///< unnamed calls in flight; recycled by number
inline constexpr uint32_t kIds = kNamedIds + kUnnamedIds;
inline constexpr uint32_t kNameSlots = 2 * kNamedIds;
inline constexpr uint32_t kMaxName = 240;
inline constexpr uint32_t kLogWords = 1u << 18;  ///< 1 MiB of decisions not yet carried out by all
inline constexpr uint32_t kOutboxWords = 1u << 19;  ///< of the outbox of a set on several hosts
inline constexpr uint32_t kExecSlots = 64;          ///< decisions in flight that ranks run together
inline constexpr uint32_t kMaxProcessSets = 64;
inline constexpr uint32_t kMaxGroups = 128;  ///< sets that only their members know of
inline constexpr uint32_t kSegmentSets = kMaxProcessSets + kMaxGroups;
inline constexpr size_t kLongestText = 2048;  ///< of an error in the log or in an outbox
inline constexpr uint64_t kPrivate = std::numeric_limits<uint64_t>::max();

/// Numbers of groups have this bit; the others are those of sets that every rank of the job knows.
inline constexpr uint32_t kGroupBit = 1u << 30;
[[nodiscard]] constexpr bool IsGroup(uint32_t set) { return (set & kGroupBit) != 0; }
/// Where a set that every rank knows lies on the control segment. A group's place is in
/// HostHeader::groups.
[[nodiscard]] constexpr uint32_t SlotOf(uint32_t set) { return set % kMaxProcessSets; }

/// One call, on all ranks: the generation of an id. It never comes back, whatever name the id goes
/// to.
struct TensorKey {
  uint32_t id;
  uint64_t generation;
  bool operator==(const TensorKey&) const = default;
};

/// One tensor of a rank's submission.
struct TensorRow {
  uint8_t type = 0;
  uint8_t ndim = 0;
  uint64_t input = kPrivate;  ///< offset in the rank's memory, or kPrivate
  uint64_t output = kPrivate;
  int64_t shape[kMaxDims] = {};
};

/// The request that a rank publishes for one id. There are two copies, by parity of the generation:
/// a rank can be at most one generation ahead of a peer that still reads. Of a named tensor of few
/// dimensions the first two cache lines are written and read, and no others.
struct alignas(64) Row {
  std::atomic<uint64_t> generation{0};  ///< released last: the row is ready for this generation
  /// Of a set on several hosts: the rank has been counted in this generation.
  std::atomic<uint64_t> counted{0};
  uint64_t signature = 0;
  uint64_t sequence = 0;  ///< position among this rank's submissions in the set
  double prescale = 1, postscale = 1;
  uint32_t sync_round = 0;  ///< times this rank had waited for a result before
  uint32_t tensors = 0;     ///< if > 1: TensorRow[tensors] at `extra`
  uint8_t collective = 0;
  uint8_t op = 0;
  /// This rank must be woken for the decision (it has a callback). An error may end a call while a
  /// rank that is missing writes its row.
  std::atomic<uint8_t> notify{0};
  uint8_t on_gpu = 0;  ///< 1 + the number of the GPU in the rank's process; 0: the host's memory
  Recurs recurs = Recurs::kNo;
  uint8_t stays_on_gpu = 0;  ///< nothing of it was copied to the host, and its results need not be
  uint8_t proposes = 0;      ///< there is a `proposal`
  int32_t root = 0;
  uint32_t splits = 0;    ///< int64_t[splits] at `extra`, after the tensors
  uint32_t receives = 0;  ///< int64_t[receives] after these
  uint32_t error = 0;     ///< length of a local error's text at `extra`
  TensorRow tensor;       ///< the only tensor, if tensors == 1
  uint64_t number = 0;    ///< of an unnamed call: how many this rank had submitted before it
  uint64_t extra = 0;     ///< offset in the rank's memory of the part that does not fit here
  Proposal proposal;      ///< of a set on several hosts also if it is none
  Way way;                ///< of a set on several hosts
};
static_assert(offsetof(Row, tensor) + offsetof(TensorRow, shape) <= 128 - 3 * sizeof(int64_t));

/// The reason why a process set has ended; zeroed memory: it has not.
class SetEnd {
 public:
  constexpr SetEnd() = default;
  [[nodiscard]] static constexpr SetEnd Removed() { return SetEnd(kRemovedWord); }
  /// A member has shut down, or has left.
  [[nodiscard]] static constexpr SetEnd Left(int global_rank) { return SetEnd(global_rank + 1); }
  /// A member has given up waiting.
  [[nodiscard]] static constexpr SetEnd GaveUp(int global_rank) {
    return SetEnd(kGaveUpWord - global_rank);
  }
  [[nodiscard]] static constexpr SetEnd FromWire(int32_t word) { return SetEnd(word); }

  [[nodiscard]] explicit operator bool() const { return word_ != 0; }
  [[nodiscard]] bool removed() const { return word_ == kRemovedWord; }
  [[nodiscard]] bool gave_up() const { return word_ <= kGaveUpWord; }
  /// The member that has left or has given up; only unless removed().
  [[nodiscard]] int rank() const { return gave_up() ? kGaveUpWord - word_ : word_ - 1; }
  [[nodiscard]] int32_t wire() const { return word_; }
  bool operator==(const SetEnd&) const = default;

 private:
  static constexpr int32_t kRemovedWord = -1;
  static constexpr int32_t kGaveUpWord = -2;  ///< less the global rank
  explicit constexpr SetEnd(int32_t word) : word_(word) {}

  int32_t word_ = 0;
};
static_assert(std::atomic<SetEnd>::is_always_lock_free);

inline constexpr uint64_t kUndecided = std::numeric_limits<uint64_t>::max();

struct alignas(64) IdEntry {
  std::atomic<Arrivals> arrivals;
  /// End in the log of the last decision that named it. 0: none since its name has it. kUndecided:
  /// this rank has submitted it, and the root on another host may not have decided yet.
  std::atomic<uint64_t> last_decision{0};
  std::atomic<uint64_t> stall_told{0};  ///< latest generation that a rank has warned of
  /// Of a set on several hosts: the bucket that it is in at the root, + 1; or 0.
  std::atomic<uint32_t> bucket{0};
  /// Of a set on several hosts: by how much the id's generation here is behind the highest number
  /// that a rank of any host has proposed with a call of that name. It only grows.
  std::atomic<uint64_t> behind{0};
  uint64_t name_hash = 0;
  uint32_t name_length = 0;  ///< 0: free
  char name[kMaxName] = {};
};

/// Mutual exclusion between the ranks of a host; the owner's death is noticed.
struct SegmentLock {
  std::atomic<uint32_t> owner{0};  ///< local rank + 1
};

struct alignas(64) Cursor {
  std::atomic<uint64_t> words{0};  ///< position in the log up to which the rank has finished
  std::atomic<uint64_t> slots{0};  ///< number of execution slots it has finished with
  /// Odd: the rank has joined, and submits nothing until all have. It moves at the join and at its
  /// end, so that ranks tell one join from the next.
  std::atomic<uint32_t> joined{0};
  std::atomic<uint32_t> left{0};  ///< the rank has left the group; SetHeader::end names only one
  uint64_t unnamed = 0;           ///< unnamed calls that it had submitted when it joined
  uint32_t join_told = 0;         ///< `joined` of the join of which the leader was told
};

/// Fixed part of a set's control segment; the arrays follow (see SetSegment).
struct SetHeader {
  SegmentLock lock;
  alignas(64) std::atomic<uint64_t> log_words{0};  ///< end of the log, in words ever written
  uint64_t slots = 0;                              ///< execution slots ever given to decisions
  std::atomic<uint32_t> starved{0};  ///< a decision waits for room in the log or for a slot
  std::atomic<SetEnd> end;           ///< written once, under the lock
  std::atomic<uint32_t> joined{0};   ///< ranks that have joined
  /// Cursor::joined of the join that a rank has warned of.
  std::atomic<uint32_t> join_stall_told{0};
  uint32_t last_joined = 0;  ///< by index in the group
  uint32_t ids = 0;          ///< named ids given out
  uint32_t backlog = 0;      ///< items that are ready but not decided
  // Of a set on several hosts.
  uint32_t leader_waits = 0;              ///< 1: its leader has a decision, and no room for it
  uint64_t decided = 0;                   ///< decisions of the root that are in the log
  uint32_t released = 0;                  ///< ranks of this host that are done with the set
  std::atomic<uint32_t> all_released{0};  ///< 1: the ranks of all hosts are
};

/// In words ever put in and ever taken out.
struct OutboxHeader {
  alignas(64) std::atomic<uint64_t> put{0};
  alignas(64) std::atomic<uint64_t> taken{0};
};

/// A group's place on this host's control segment; under HostHeader::groups_lock.
struct GroupPlace {
  uint32_t number = 0;
  uint32_t members = 0;  ///< 0: the place is free
  bool used = false;     ///< an earlier group may have left something in it
};

enum class RankPhase : uint32_t { kAbsent = 0, kPresent = 1, kLeft = 2 };

inline constexpr size_t kStackText = 512;
inline constexpr uint64_t kNotBlocked = std::numeric_limits<uint64_t>::max();

struct alignas(64) RankState {
  std::atomic<uint32_t> phase{0};       ///< RankPhase
  std::atomic<uint32_t> abort_seen{0};  ///< this rank has stopped touching shared buffers
  /// process set << 32 | id of what a caller waits for, or kNotBlocked.
  std::atomic<uint64_t> blocked_on{0};
  std::atomic<uint64_t> mail{
      0};  ///< the latest message for this rank: runtime/messages/message_descriptor.h

  // The heartbeat, by which a rank that is stopped is told from one that computes.
  alignas(64) std::atomic<int64_t> beat_ns{0};  ///< the last sign of life, on its own clock
  std::atomic<int64_t> silence_told{0};         ///< the beat after which a peer missed one
  std::atomic<uint64_t> collectives{0};         ///< decisions that it has begun to carry out
  std::atomic<uint64_t> started_ticks{0};  ///< of its process, see runtime/health/process_state.h
  std::atomic<uint64_t> epoch{0};          ///< of its init, see transport/bootstrap/bootstrap.h
  std::atomic<int32_t> pid{0};

  // The stack of its interpreter, for ranks that wait for it: runtime/health/stack_exchange.cc.
  std::atomic<uint32_t> stack_wanted{0};
  std::atomic<uint32_t> stack_given{0};  ///< the latest request that the texts answer
  std::atomic<char> stack[kStackText] = {};
  std::atomic<char> lacks[kStackText] = {};  ///< tensors of its locked plans that others wait for
};

struct HostHeader {
  /// kind << 32 | culprit + 1; set once, by compare-and-swap. Every wait looks at it.
  alignas(64) std::atomic<uint64_t> abort_word{0};
  std::atomic<uint32_t> abort_text_ready{0};
  char abort_text[1024] = {};
  /// Of `groups`. A rank that dies in it leaves the place of a group unclear: then it is the job's
  /// end, as any rank's death.
  SegmentLock groups_lock;
  /// By place: the group that has it, and how many members of this host are not done with it.
  GroupPlace groups[kMaxGroups] = {};
  cuda::TicketLanes gpu_tickets;  ///< of all sets
};

}  // namespace horoacc
