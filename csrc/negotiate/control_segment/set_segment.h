#pragma once
// One process set's part of the control segment, as one rank sees it.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "execute/cuda/host/peer_info.h"
#include "negotiate/control_segment/control_segment.h"
#include "negotiate/control_segment/name_table.h"
#include "negotiate/control_segment/outbox.h"
#include "negotiate/control_segment/segment_lock.h"

namespace horoacc {

class SetSegment {
 public:
  /// `locals`: local rank of every member on this host, by index among them.
  SetSegment(const ControlSegment& control, uint32_t slot, std::vector<uint32_t> locals,
             uint32_t me, LockWatch watch);
  [[nodiscard]] static size_t BytesFor(uint32_t ranks);

  [[nodiscard]] uint32_t ranks() const { return static_cast<uint32_t>(locals_.size()); }
  [[nodiscard]] uint32_t me() const { return me_; }
  [[nodiscard]] uint32_t local(uint32_t index) const { return locals_[index]; }
  [[nodiscard]] bool IsAlive(uint32_t index) const { return watch_.alive(locals_[index]); }
  [[nodiscard]] SetHeader& header() const { return *reinterpret_cast<SetHeader*>(base_); }
  [[nodiscard]] IdEntry& id(uint32_t id) const { return ids_[id]; }
  [[nodiscard]] Row& row(uint32_t index, uint32_t id, uint64_t generation) const {
    return rows_[(static_cast<size_t>(index) * kIds + id) * 2 + generation % 2];
  }
  /// This rank will probably publish a call soon: brings what it writes then to the cache.
  void Prefetch(TensorKey key) const {
    const Row* const own = &row(me_, key.id, key.generation);
    __builtin_prefetch(&ids_[key.id], 1);
    __builtin_prefetch(own, 1);
    __builtin_prefetch(&own->tensor.output, 1);
  }
  [[nodiscard]] Cursor& cursor(uint32_t index) const { return cursors_[index]; }
  [[nodiscard]] ExecSlot& slot(uint64_t number) const;
  [[nodiscard]] uint32_t& log_word(uint64_t position) const { return log_[position % kLogWords]; }
  /// Ids that are ready on all ranks but not decided, for lack of room in the log.
  [[nodiscard]] uint32_t* backlog() const { return backlog_; }
  [[nodiscard]] PlanState& plan() { return plan_; }
  [[nodiscard]] const Outbox& outbox() const { return outbox_; }
  /// Where the ranks' GPUs meet.
  [[nodiscard]] const cuda::GpuGroupSegment& gpus() const { return gpus_; }
  /// This rank has finished the log up to `words`, and its part of `slots` execution slots. True if
  /// a decision waits for that. Here and in Starve both sides write and then look; in one total
  /// order, so one of them sees the other.
  [[nodiscard]] bool FinishUpTo(uint64_t words, std::optional<uint64_t> slots) const;
  /// A decision waits for room. True if it is the first: others must be woken, and whether there is
  /// room must be asked again.
  [[nodiscard]] bool Starve() const;
  [[nodiscard]] uint64_t LeastSlotsFinished() const;
  [[nodiscard]] uint64_t LeastWordsFinished() const;

  /// Holds the set's lock.
  class Guard : public SegmentGuard {
   public:
    explicit Guard(const SetSegment& control)
        : SegmentGuard(control.control_, control.header().lock, control.locals_[control.me_],
                       control.watch_) {}
  };

  /// Finds or makes the id of a name. Takes the lock. kInvalid if every id is in flight.
  struct NamedId {
    uint32_t id;
    uint32_t id_version;
  };
  [[nodiscard]] Result<NamedId> Lookup(std::string_view name);
  [[nodiscard]] std::string NameOf(uint32_t id) const { return names_.NameOf(id); }
  [[nodiscard]] const NameTable& names() const { return names_; }
  /// The id of a name that is known already. Takes the lock.
  [[nodiscard]] std::optional<uint32_t> Known(std::string_view name) const;
  /// Ends a generation for which ranks are missing, and leaves out the next one: its rows may still
  /// be read, as those of the one before, by a rank that was missing. False if it is over already.
  [[nodiscard]] bool CloseGeneration(uint32_t id, uint64_t generation) const;

  [[nodiscard]] bool HasJoined(uint32_t index) const { return JoinCount(index) % 2 == 1; }
  [[nodiscard]] uint32_t JoinCount(uint32_t index) const {
    return cursors_[index].joined.load(std::memory_order_acquire);
  }
  /// Has rank `index` not come to the join of a rank whose count is `join`?
  [[nodiscard]] bool IsMissingIn(uint32_t join, uint32_t index) const {
    return static_cast<int32_t>(JoinCount(index) - join) < 0;
  }
  /// Has rank `index` submitted this call? Its row says so shortly before it is counted.
  [[nodiscard]] bool HasSubmitted(uint32_t index, TensorKey key) const {
    return row(index, key.id, key.generation).generation.load(std::memory_order_acquire) ==
           key.generation;
  }
  /// A rank that has joined may still have to carry out the last call of the id, if it took part.
  /// Then it may still read rows that the next call but one would overwrite.
  [[nodiscard]] bool Lags(uint32_t index, TensorKey last) const;

  /// The row of rank `index` for `id` in `generation`, as a request again.
  [[nodiscard]] Request ReadRequest(uint32_t index, uint32_t id, uint64_t generation,
                                    const std::byte* memory) const;

 private:
  [[nodiscard]] Result<uint32_t> FreeId();

  const ControlSegment& control_;
  std::byte* base_;
  std::vector<uint32_t> locals_;
  uint32_t me_;
  LockWatch watch_;
  IdEntry* ids_;
  Row* rows_;
  Cursor* cursors_;
  std::byte* slots_;
  uint32_t* log_;
  NameTable names_;
  uint32_t* backlog_;
  PlanState plan_;
  Outbox outbox_;
  cuda::GpuGroupSegment gpus_;
};

}  // namespace horoacc
