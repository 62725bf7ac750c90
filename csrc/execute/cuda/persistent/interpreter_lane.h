#pragma once
// A block of a kernel runs a lane of a schedule from slot to slot, over memory that all ranks see.
// docs/schedules.md is the contract.
//
// A link is a ring of `depth` slots with two counts that only grow, from call to call too: `tail`,
// of posted messages, lies with the receiver, and `head`, of taken ones, with the sender, so that
// each end polls its own memory. Every window sends every message, empty or not, so both ends know
// its number without being told, and nothing has to be reset.
#include "execute/cuda/kernels/pack_grid.h"
#include "execute/cuda/persistent/kernel_wait.h"

namespace horoacc::cuda {
namespace {

template <typename E, typename Op, typename Cta>
class InterpretedLane {
 public:
  HA_INLINE InterpretedLane(Cta& cta, const KernelProgram& program, const KernelCall& call, Op op)
      : cta_(cta),
        program_(program),
        header_(program.header()),
        call_(call),
        op_(op),
        rank_(cta.rank()),
        lane_(cta.lane()),
        channel_(cta.channel()),
        turns_(program.turns(channel_)),
        before_(call.call * turns_) {}

  /// False: the call was given up, and all its memory is invalid.
  HA_HOST_DEVICE bool Run() {
    const uint32_t steps = program_.steps(rank_, lane_);
    for (uint64_t turn = 0; turn < turns_; ++turn) {
      const WindowPlace at{channel_ + turn * header_.channels, turn};
      if (!MayUseMemory(at)) return false;
      HA_ROLLED
      for (uint32_t k = 0; k < steps; ++k) {
        const KernelStep& step = program_.step(rank_, lane_, k);
        if (!AwaitStep(step, at, k)) return false;
        Work(step, at);
        Publish(step, at);
      }
      Share(cta_, 1, [&](uint32_t) { cta_.Release(Ended(lane_), before_ + turn + 1); });
    }
    return AwaitTaken(turns_);
  }

 private:
  /// The number of a message among all that its link ever carries.
  [[nodiscard]] HA_INLINE uint64_t Number(const KernelEnd& end, const WindowPlace& at) const {
    return (before_ + at.turn) * end.per_window + end.ordinal;
  }
  [[nodiscard]] HA_INLINE uint64_t* Tail(uint32_t rank, uint32_t tail) const {
    return CellAt(call_.workspace[rank], 0, uint64_t{tail} * header_.channels + channel_);
  }
  [[nodiscard]] HA_INLINE uint64_t* Head(uint32_t rank, uint32_t head) const {
    return CellAt(call_.workspace[rank], header_.heads,
                  uint64_t{head} * header_.channels + channel_);
  }
  [[nodiscard]] HA_INLINE uint64_t* Ended(uint32_t lane) const {
    return CellAt(call_.workspace[rank_], header_.ended,
                  uint64_t{lane} * header_.channels + channel_);
  }

  /// A window uses the memory of an earlier one: all lanes must have ended that one, and peers have
  /// taken all messages that were sent from it.
  HA_HOST_DEVICE bool MayUseMemory(const WindowPlace& at) {
    if (at.turn < header_.places || header_.workspace_bytes == header_.scratch) return true;
    const uint64_t over = at.turn - header_.places + 1;
    bool ok = true;
    Share(cta_, header_.lanes,
          [&](uint32_t lane) { ok = ok && Await(cta_, Ended(lane), before_ + over); });
    for (uint32_t lane = 0; lane < header_.lanes; ++lane) {
      ok = AwaitTakenOf(lane, over) && ok;
    }
    return Agree(ok, ~0u);
  }

  /// Waits until peers have taken all messages of this lane's first `turns` turns.
  HA_HOST_DEVICE bool AwaitTaken(uint64_t turns) { return Agree(AwaitTakenOf(lane_, turns), ~0u); }

  HA_HOST_DEVICE bool AwaitTakenOf(uint32_t lane, uint64_t turns) {
    const uint32_t steps = program_.steps(rank_, lane);
    bool ok = true;
    HA_ROLLED
    for (uint32_t k = 0; k < steps; ++k) {
      const KernelStep& step = program_.step(rank_, lane, k);
      Share(cta_, step.targets, [&](uint32_t t) {
        const KernelEnd& end = program_.target(step.first_target + t);
        ok = ok && Await(cta_, Head(rank_, end.head), (before_ + turns) * end.per_window);
      });
    }
    return ok;
  }

  /// Waits until all sources are posted, all targets have a free slot, and earlier lanes have
  /// ended.
  HA_HOST_DEVICE bool AwaitStep(const KernelStep& step, const WindowPlace& at, uint32_t k) {
    bool ok = true;
    Share(cta_, step.sources + step.targets + header_.lanes, [&](uint32_t i) {
      if (i < step.sources) {
        const KernelEnd& end = program_.source(step.first_source + i);
        ok = ok && Await(cta_, Tail(rank_, end.tail), CountWith(Number(end, at)));
      } else if (i < step.sources + step.targets) {
        const KernelEnd& end = program_.target(step.first_target + i - step.sources);
        ok = ok &&
             Await(cta_, Head(rank_, end.head), CountThatFrees(Number(end, at), header_.depth));
      } else {
        const uint32_t lane = i - step.sources - step.targets;
        if ((step.after >> lane & 1) != 0) {
          ok = ok && Await(cta_, Ended(lane), before_ + at.turn + 1);
        }
      }
    });
    return Agree(ok, k);
  }

  HA_INLINE bool Agree(bool ok, uint32_t step) {
    if (!cta_.Any(!ok)) return true;
    if (!ok) cta_.Report(GivenUp(rank_, lane_, step));
    return false;
  }

  /// The number of a chunk's elements in this window; `*address` is that of the first.
  [[nodiscard]] HA_HOST_DEVICE uint64_t Find(uint32_t rank, Memory memory, uint32_t chunk,
                                             const WindowPlace& at, char** address) const {
    const uint64_t begin = at.window * header_.window_elements;
    const uint64_t place = channel_ * uint64_t{header_.places} + at.turn % header_.places;
    uint64_t whole = 0;
    if (memory == Memory::kScratch) {
      whole = program_.kept(rank, chunk);
      *address = call_.workspace[rank] + header_.scratch +
                 (place * header_.scratch_chunks + chunk) * header_.stride;
    } else {
      const Memory shape = memory == Memory::kApart ? Memory::kOutput : memory;
      const KernelPart& part = program_.part(rank, shape, chunk);
      whole = part.count;
      if (memory == Memory::kApart) {
        *address = call_.workspace[rank] + header_.apart +
                   (place * header_.chunks + chunk) * header_.stride;
      } else {
        const uint64_t offset = (part.first + begin) * element_bytes();
        *address = memory == Memory::kInput ? const_cast<char*>(call_.input[rank]) + offset
                                            : call_.output[rank] + offset;
      }
    }
    if (whole <= begin) return 0;
    const uint64_t left = whole - begin;
    return left < header_.window_elements ? left : header_.window_elements;
  }

  [[nodiscard]] HA_INLINE static constexpr size_t element_bytes() {
    return sizeof(typename E::Stored);
  }
  [[nodiscard]] HA_INLINE uint32_t SizeOf(Memory memory) const {
    return memory == Memory::kScratch ? header_.scratch_chunks : header_.chunks;
  }
  /// The j-th chunk of a message in a slot with `rank`.
  [[nodiscard]] HA_INLINE char* Slot(uint32_t rank, const KernelEnd& end, const WindowPlace& at,
                                     uint32_t j) const {
    const uint64_t slot = (uint64_t{end.slot} * header_.channels + channel_) * header_.depth +
                          SlotOf(Number(end, at), header_.depth);
    return call_.workspace[rank] + header_.slots + (slot * header_.messages + j) * header_.stride;
  }
  /// The address of the j-th chunk of a source's message.
  [[nodiscard]] HA_INLINE const char* Received(const KernelEnd& end, const WindowPlace& at,
                                               uint32_t j) const {
    if (end.memory == Memory::kSlot) return Slot(rank_, end, at, j);
    char* address = nullptr;
    static_cast<void>(
        Find(end.peer, end.memory, (end.chunk + j) % SizeOf(end.memory), at, &address));
    return address;
  }

  HA_HOST_DEVICE void Work(const KernelStep& step, const WindowPlace& at) {
    if (step.action == Action::kNothing) return;
    HA_ROLLED
    for (uint32_t j = 0; j < step.count; ++j) {
      char* own = nullptr;
      char* stored = nullptr;
      uint64_t count = 0;
      if (step.stored != Memory::kNone) {
        const uint32_t chunk = (step.stored_chunk + j) % SizeOf(step.stored);
        count = Find(rank_, step.stored, chunk, at, &stored);
      }
      if (step.own != Memory::kNone) {
        count = Find(rank_, step.own, (step.own_chunk + j) % SizeOf(step.own), at, &own);
      }
      if (count == 0) continue;
      if (step.action == Action::kCopy) {
        Copy(step, at, j, own, stored, count);
      } else {
        Combine(step, at, j, own, stored, count);
      }
    }
  }

  HA_INLINE void Copy(const KernelStep& step, const WindowPlace& at, uint32_t j, const char* own,
                      char* stored, uint64_t count) {
    const bool partial = (step.flags & kResultPartial) != 0;
    const uint64_t bytes = count * (partial ? sizeof(typename E::Acc) : element_bytes());
    const char* const from =
        own != nullptr ? own : Received(program_.source(step.first_source), at, j);
    if (from == stored) return;
    cta_.Each([&](const Grid& grid) {
      uint32_t unused = 0;
      PackTile<Bytes>(from, stored, bytes, header_.factors, grid, &unused);
    });
  }

  HA_INLINE void Combine(const KernelStep& step, const WindowPlace& at, uint32_t j, const char* own,
                         char* stored, uint64_t count) {
    CombineArgs& args = cta_.combine_args();
    cta_.Sync();  // no thread reads the former arguments any more
    const uint32_t operands = step.sources + (own != nullptr ? 1 : 0);
    Share(cta_, operands, [&](uint32_t i) {
      const bool is_own = own != nullptr && i == step.own_position;
      const uint32_t source = own != nullptr && i > step.own_position ? i - 1 : i;
      args.operands.source[i] =
          is_own ? own : Received(program_.source(step.first_source + source), at, j);
    });
    Share(cta_, step.targets + 1, [&](uint32_t i) {
      if (i == 0) return Describe(step, operands, own != nullptr, stored, count, args);
      const KernelEnd& end = program_.target(step.first_target + i - 1);
      if (end.memory != Memory::kSlot) return;
      args.operands.destination[i - (stored == nullptr ? 1 : 0)] = Slot(end.peer, end, at, j);
    });
    cta_.Sync();
    cta_.Each([&](const Grid& grid) { CombineAny<E>(args, header_.factors, op_, grid); });
  }

  HA_INLINE static void Describe(const KernelStep& step, uint32_t operands, bool has_own,
                                 char* stored, uint64_t count, CombineArgs& args) {
    const uint64_t all = operands == 64 ? ~uint64_t{0} : (uint64_t{1} << operands) - 1;
    const uint64_t own = has_own ? uint64_t{1} << step.own_position : 0;
    const uint8_t flags = step.flags;
    Operands& to = args.operands;
    to.raw = ((flags & kReceivedRaw) != 0 ? all & ~own : 0) | ((flags & kOwnRaw) != 0 ? own : 0);
    args.partial =
        ((flags & kReceivedPartial) != 0 ? all & ~own : 0) | ((flags & kOwnPartial) != 0 ? own : 0);
    to.sources = operands;
    to.count = count;
    to.unfinished = (flags & kResultPartial) != 0;
    if (stored != nullptr) to.destination[0] = stored;
    // All targets of a step get the same kind of message: in the step's memory, or in slots.
    to.destinations = stored != nullptr ? 1 : step.targets;
  }

  /// Counts messages as taken after they were read, and as posted after they were written.
  HA_INLINE void Publish(const KernelStep& step, const WindowPlace& at) {
    cta_.Sync();
    Share(cta_, step.sources + step.targets, [&](uint32_t i) {
      if (i < step.sources) {
        const KernelEnd& end = program_.source(step.first_source + i);
        cta_.Release(Head(end.peer, end.head), CountWith(Number(end, at)));
      } else {
        const KernelEnd& end = program_.target(step.first_target + i - step.sources);
        cta_.Release(Tail(end.peer, end.tail), CountWith(Number(end, at)));
      }
    });
  }

  Cta& cta_;
  const KernelProgram& program_;
  const KernelHeader& header_;
  const KernelCall& call_;
  const Op op_;
  const uint32_t rank_, lane_, channel_;
  const uint64_t turns_, before_;
};

}  // namespace
}  // namespace horoacc::cuda
