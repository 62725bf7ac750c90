#pragma once
// The control segment (negotiate/control_segment/segment_controller.cc, set_segment.cc): ranks
// publish rows, count their arrivals, and the rank that completes a count decides under the lock. A
// small decision was reduced by the rank that decided it (the last arriver); all ranks carry out
// any other in slices. The word of the arrivals and its transitions are the controller's own.
//
// Tensors are submitted over and over, so that rows, log and slots are used again; the log has room
// for one decision only, so that decisions have to wait in the backlog.
#include "model/explore.h"
#include "negotiate/control_segment/arrivals.h"

namespace horoacc::model {

enum class SegmentFault {
  kNone,
  kOneRow,            ///< one row a rank instead of two by the parity of the generation
  kEarlyArrival,      ///< counts its arrival before its row is complete
  kPlainCount,        ///< counts its arrival by a load and a store
  kNoLock,            ///< decides without the lock
  kFullLog,           ///< appends to the log without looking whether there is room
  kEarlyEnd,          ///< moves the end of the log before the entry is written
  kForgottenBacklog,  ///< does not look at the backlog after finishing a decision
  kLateSum,           ///< tells of a decision before the sum is in the outputs
  kEarlyFinish,       ///< says that it has finished before it has read the peers' rows
};

struct SegmentShape {
  bool last_arriver = true;  ///< else the ranks reduce in claimed slices
  uint8_t tensors = 1;       ///< at most 2; odd ranks submit them in the other order
  uint8_t generations = 3;   ///< submissions of each
};

template <uint32_t kRanks>
class SegmentModel {
 public:
  static constexpr uint32_t kTensors = 2;
  static constexpr uint32_t kSlices = 2;
  using Count = ArrivalsIn<uint8_t, 2, 4>;

  struct Rank {
    uint8_t pc = 0;
    uint8_t submitted = 0;    ///< of this round's tensors
    uint8_t carried_out = 0;  ///< decisions of this round
    uint8_t generation = 1;
    uint8_t tensor = 0;  ///< that it submits, decides or carries out
    uint8_t slice = 0;
    Count seen;
    uint8_t peer = 0;
    uint8_t taken = 0;             ///< entries of the log
    uint8_t back = 0;              ///< where to go on after deciding
    uint8_t input[kTensors] = {};  ///< its tensors, in the arena: the generation that they hold
    uint8_t output[kTensors] = {};
  };
  struct State {
    uint8_t row[kRanks][kTensors][2][2] = {};  ///< halves of the two rows
    Count arrivals[kTensors] = {};
    uint8_t lock = 0;    ///< rank + 1
    uint8_t inside = 0;  ///< ranks that decide at the moment
    uint8_t end = 0;     ///< of the log
    uint8_t entry = 0;   ///< the log's only place: tensor + 1 of the decision there
    uint8_t finished[kRanks] = {};
    uint8_t starved = 0;
    uint8_t backlog[kTensors] = {};  ///< tensor + 1
    uint8_t waiting = 0;             ///< length of the backlog
    uint8_t next_slice = 0, slices_done = 0;
    Rank rank[kRanks];
  };

  SegmentModel(SegmentShape shape, SegmentFault fault) : shape_(shape), fault_(fault) {}
  [[nodiscard]] State initial() const { return {}; }
  [[nodiscard]] uint32_t processes() const { return kRanks; }
  [[nodiscard]] bool Done(const State& s) const {
    for (const Rank& rank : s.rank) {
      if (rank.generation <= shape_.generations) return false;
    }
    return true;
  }

  Outcome Step(State& s, uint32_t process, const char** wrong) const {
    Rank& me = s.rank[process];
    switch (me.pc) {
      case kSubmit:
        return Submit(s, me, process);
      case kRowSecond:
        RowOf(s, process, me.tensor, me.generation)[1] = me.generation;
        me.pc = fault_ == SegmentFault::kEarlyArrival ? me.back : uint8_t{kLoadCount};
        return Outcome::kMoved;
      case kLoadCount:
        me.seen = s.arrivals[me.tensor];
        me.pc = kArrive;
        return Outcome::kMoved;
      case kArrive:
        return Arrive(s, me);
      case kLock:
        if (fault_ != SegmentFault::kNoLock && s.lock != 0) return Outcome::kBlocked;
        s.lock = static_cast<uint8_t>(process + 1);
        if (++s.inside > 1) *wrong = "two ranks decide at once";
        me.pc = kDecide;
        return Outcome::kMoved;
      case kDecide:
        return Decide(s, me);
      case kStarve:
        s.starved = s.waiting > 0;
        me.pc = kUnlock;
        return Outcome::kMoved;
      case kReadRows:
        return ReadRows(s, me, wrong, kReset);
      case kReset:  // the execution slot of the decision: all ranks have finished with it
        s.next_slice = s.slices_done = 0;
        me.pc = shape_.last_arriver && fault_ != SegmentFault::kLateSum ? kSum : kEntry;
        return Outcome::kMoved;
      case kSum:
        Sum(s, me, wrong);
        me.pc = fault_ == SegmentFault::kLateSum ? kDecide : kEntry;
        return Outcome::kMoved;
      case kEntry:
        (fault_ == SegmentFault::kEarlyEnd ? s.end : s.entry) =
            fault_ == SegmentFault::kEarlyEnd ? static_cast<uint8_t>(s.end + 1)
                                              : static_cast<uint8_t>(me.tensor + 1);
        me.pc = kEnd;
        return Outcome::kMoved;
      case kEnd:
        (fault_ == SegmentFault::kEarlyEnd ? s.entry : s.end) =
            fault_ == SegmentFault::kEarlyEnd ? static_cast<uint8_t>(me.tensor + 1)
                                              : static_cast<uint8_t>(s.end + 1);
        me.pc = shape_.last_arriver && fault_ == SegmentFault::kLateSum ? kSum : kDecide;
        return Outcome::kMoved;
      case kUnlock:
        --s.inside;
        s.lock = 0;
        me.pc = me.back;
        return Outcome::kMoved;
      case kWait:
        return Take(s, me, wrong);
      case kCarry:
        return ReadRows(s, me, wrong, shape_.last_arriver ? kComplete : kClaim);
      case kClaim:
        me.slice = s.next_slice;  // a compare-and-swap that fails changes nothing
        if (me.slice < kSlices) ++s.next_slice;
        me.pc = me.slice < kSlices ? kReduce : kSlicesDone;
        return Outcome::kMoved;
      case kReduce:
        Sum(s, me, wrong);
        me.pc = kCountSlice;
        return Outcome::kMoved;
      case kCountSlice:
        ++s.slices_done;
        me.pc = kClaim;
        return Outcome::kMoved;
      case kSlicesDone:
        if (s.slices_done < kSlices) return Outcome::kBlocked;
        me.pc = kComplete;
        return Outcome::kMoved;
      case kComplete:
        return Complete(me, wrong);
      case kFinish:
        s.finished[process] = me.taken;
        me.pc = fault_ == SegmentFault::kEarlyFinish        ? kCarry
                : fault_ == SegmentFault::kForgottenBacklog ? kNext
                                                            : kPump;
        return Outcome::kMoved;
      case kPump:
        me.pc = s.starved ? kLock : kNext;
        me.back = kNext;
        return Outcome::kMoved;
      default:
        return Next(me);
    }
  }

 private:
  enum Place : uint8_t {
    kSubmit,
    kRowSecond,
    kLoadCount,
    kArrive,
    kLock,
    kDecide,
    kStarve,
    kReadRows,
    kReset,
    kSum,
    kEntry,
    kEnd,
    kUnlock,
    kWait,
    kCarry,
    kClaim,
    kReduce,
    kCountSlice,
    kSlicesDone,
    kComplete,
    kFinish,
    kPump,
    kNext
  };

  uint8_t* RowOf(State& s, uint32_t rank, uint8_t tensor, uint8_t generation) const {
    return s.row[rank][tensor][fault_ == SegmentFault::kOneRow ? 0 : generation % 2];
  }

  // Its tensors in turn; then it waits. (The first half of the row goes with the input.)
  Outcome Submit(State& s, Rank& me, uint32_t process) const {
    if (me.generation > shape_.generations) return Idle(s, me);
    if (me.submitted == shape_.tensors) {
      me.pc = kWait;
      return Outcome::kMoved;
    }
    const bool reversed = process % 2 == 1 && shape_.tensors == 2;
    me.tensor = reversed ? static_cast<uint8_t>(1 - me.submitted) : me.submitted;
    ++me.submitted;
    me.input[me.tensor] = me.generation;
    me.output[me.tensor] = 0;
    RowOf(s, process, me.tensor, me.generation)[0] = me.generation;
    me.back = kSubmit;
    me.pc = fault_ == SegmentFault::kEarlyArrival ? kLoadCount : kRowSecond;
    return Outcome::kMoved;
  }

  // The compare-and-swap; the last one opens the next generation and decides.
  Outcome Arrive(State& s, Rank& me) const {
    if (fault_ != SegmentFault::kPlainCount && s.arrivals[me.tensor] != me.seen) {
      me.pc = kLoadCount;
      return Outcome::kMoved;
    }
    s.arrivals[me.tensor] = me.seen.Arrive(kRanks);
    const bool last = s.arrivals[me.tensor].arrived() == 0;
    me.pc = fault_ == SegmentFault::kEarlyArrival ? kRowSecond : kSubmit;
    if (!last) return Outcome::kMoved;
    me.back = me.pc;
    me.peer = static_cast<uint8_t>(me.tensor + 1);  // goes to the backlog once the lock is held
    me.pc = kLock;
    return Outcome::kMoved;
  }

  [[nodiscard]] bool HasRoom(const State& s) const {
    if (fault_ == SegmentFault::kFullLog) return true;
    for (const uint8_t finished : s.finished) {
      if (finished != s.end) return false;
    }
    return true;
  }

  // Under the lock: what became ready goes to the backlog, and comes out of it while there is room.
  Outcome Decide(State& s, Rank& me) const {
    if (me.peer != 0) {
      s.backlog[s.waiting++] = me.peer;
      me.peer = 0;
    }
    if (s.waiting > 0 && HasRoom(s)) {
      me.tensor = static_cast<uint8_t>(s.backlog[0] - 1);
      s.backlog[0] = s.backlog[1];
      s.backlog[1] = 0;
      --s.waiting;
      me.pc = kReadRows;
      return Outcome::kMoved;
    }
    me.pc = kStarve;
    return Outcome::kMoved;
  }

  // A rank that waits, or has nothing to do, looks at the backlog whenever it turns its loop.
  Outcome Idle(State& s, Rank& me) const {
    if (s.starved == 0 || fault_ == SegmentFault::kForgottenBacklog) return Outcome::kBlocked;
    me.back = me.pc;
    me.pc = kLock;
    return Outcome::kMoved;
  }

  // Both halves of a peer's row in two steps. Rows must be of the generation that is decided.
  Outcome ReadRows(State& s, Rank& me, const char** wrong, uint8_t then) const {
    const uint32_t half = me.peer % 2;
    const auto generation = static_cast<uint8_t>(s.arrivals[me.tensor].over());
    if (RowOf(s, me.peer / 2, me.tensor, generation)[half] != generation) {
      *wrong = "reads a row of another generation";
    }
    if (++me.peer == 2 * kRanks) {
      me.peer = 0;
      me.pc = then;
    }
    return Outcome::kMoved;
  }

  // All inputs into all outputs. (Of one slice: the second one completes the outputs.)
  void Sum(State& s, const Rank& me, const char** wrong) const {
    const auto generation = static_cast<uint8_t>(s.arrivals[me.tensor].over());
    for (Rank& rank : s.rank) {
      if (rank.input[me.tensor] != generation) *wrong = "reduces the input of another generation";
      rank.output[me.tensor] =
          static_cast<uint8_t>(rank.output[me.tensor] + (shape_.last_arriver ? kSlices : 1));
    }
  }

  Outcome Take(State& s, Rank& me, const char** wrong) const {
    if (me.taken == s.end) return Idle(s, me);
    ++me.taken;
    // One that it has carried out has given the input back.
    if (s.entry == 0 || me.input[s.entry - 1] != me.generation) {
      *wrong = "takes a decision that is not the next one";
      return Outcome::kMoved;
    }
    me.tensor = static_cast<uint8_t>(s.entry - 1);
    me.peer = 0;
    me.pc = fault_ == SegmentFault::kEarlyFinish ? kFinish : kCarry;
    return Outcome::kMoved;
  }

  Outcome Complete(Rank& me, const char** wrong) const {
    if (me.output[me.tensor] != kSlices) *wrong = "completes without the whole result";
    me.input[me.tensor] = 0;  // the caller's again
    me.pc = fault_ == SegmentFault::kEarlyFinish ? kPump : kFinish;
    return Outcome::kMoved;
  }

  Outcome Next(Rank& me) const {
    me.peer = 0;
    if (++me.carried_out < shape_.tensors) {
      me.pc = kWait;
      return Outcome::kMoved;
    }
    me.carried_out = me.submitted = 0;
    ++me.generation;
    me.pc = kSubmit;
    return Outcome::kMoved;
  }

  const SegmentShape shape_;
  const SegmentFault fault_;
};

}  // namespace horoacc::model
