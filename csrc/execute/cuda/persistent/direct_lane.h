#pragma once
// Allreduce of large messages where every rank can read and write every other's memory: the owner
// of a part reads it from all inputs and writes it to all outputs, in one pass. So each input and
// each output moves once, which is the least possible.
//
// Channels cut a part further and are independent. A channel begins when the same channel of all
// ranks has counted its input as ready, and ends when all have counted themselves as done with the
// others' memory.
#include "execute/cuda/persistent/kernel_wait.h"

namespace horoacc::cuda {

/// The n-th of `parts` cuts of `count` elements, at multiples of `grain`.
HA_INLINE KernelPart CutOfVector(uint64_t count, uint64_t parts, uint64_t n, uint64_t grain) {
  const uint64_t grains = (count + grain - 1) / grain;
  const uint64_t each = (grains + parts - 1) / parts * grain;
  const uint64_t first = each * n < count ? each * n : count;
  return {first, count - first < each ? count - first : each};
}

namespace {

template <typename E, typename Op, typename Cta>
class DirectLane {
 public:
  HA_INLINE DirectLane(Cta& cta, const KernelProgram& program, const KernelCall& call, Op op)
      : cta_(cta),
        header_(program.header()),
        call_(call),
        op_(op),
        rank_(cta.rank()),
        ranks_(header_.ranks) {}

  /// False: the call was given up, and the output is invalid.
  HA_HOST_DEVICE bool Run() {
    using Stored = typename E::Stored;
    if (!Barrier(0)) return false;
    constexpr uint64_t kGrain = kKernelGrain / sizeof(Stored);
    const KernelPart part = CutOfVector(header_.window_elements, ranks_, rank_, kGrain);
    const KernelPart cut = CutOfVector(part.count, header_.channels, cta_.channel(), kGrain);
    const uint64_t offset = (part.first + cut.first) * sizeof(Stored);
    CombineArgs& args = cta_.combine_args();
    Operands& operands = args.operands;
    Share(cta_, ranks_, [&](uint32_t i) {
      operands.source[i] = call_.input[i] + offset;
      operands.destination[i] = call_.output[i] + offset;
      if (i > 0) return;
      operands.raw = ~uint64_t{0};
      operands.sources = operands.destinations = ranks_;
      operands.unfinished = false;
      operands.count = cut.count;
      args.partial = 0;
    });
    cta_.Sync();
    if (cut.count > 0) {
      cta_.Each([&](const Grid& grid) { CombineAny<E>(args, header_.factors, op_, grid); });
    }
    cta_.Sync();
    return Barrier(1);
  }

 private:
  [[nodiscard]] HA_INLINE uint64_t* Cell(uint32_t at, uint32_t from, uint32_t phase) const {
    const uint64_t row = (uint64_t{phase} * ranks_ + from) * header_.channels;
    return CellAt(call_.workspace[at], 0, row + cta_.channel());
  }

  /// Of the same channel of all ranks.
  HA_INLINE bool Barrier(uint32_t phase) {
    Share(cta_, ranks_, [&](uint32_t peer) {
      if (peer != rank_) cta_.Release(Cell(peer, rank_, phase), call_.call + 1);
    });
    bool ok = true;
    Share(cta_, ranks_, [&](uint32_t peer) {
      if (peer != rank_) ok = ok && Await(cta_, Cell(rank_, peer, phase), call_.call + 1);
    });
    if (!cta_.Any(!ok)) return true;
    if (!ok) cta_.Report(GivenUp(rank_, 0, phase));
    return false;
  }

  Cta& cta_;
  const KernelHeader& header_;
  const KernelCall& call_;
  const Op op_;
  const uint32_t rank_, ranks_;
};

}  // namespace
}  // namespace horoacc::cuda
