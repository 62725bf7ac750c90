#pragma once
// The parts that the stages of composed algorithms share. A stage is written for the members 0..n-1
// of a group and the chunks 0..n-1 of its part of the vector, and then placed among ranks and
// chunks.
#include "schedule/schedule.h"

namespace horoacc::schedule {

/// A member's operand in a reduction, and the factors that its steps apply.
struct Operand {
  Buffer own = Buffer::kInput;
  uint8_t load = kPrescaleOwn;  ///< flags of every use of `own`
  uint8_t done = kPostscale;    ///< flags of the step that completes a sum
};

template <typename RankOf>
void PlacePeers(Step& step, RankOf rank_of) {
  for (uint32_t k = 0; k < step.receives + step.sends; ++k) step.peer[k] = rank_of(step.peer[k]);
}

/// Chunk c of the stage becomes the `width` chunks from `base + c * width` on.
inline void PlaceChunks(Step& step, uint32_t base, uint32_t width) {
  step.src_chunk = base + step.src_chunk * width;
  step.dst_chunk = base + step.dst_chunk * width;
  step.count = static_cast<uint16_t>(width);
}

/// A step that copies the rank's input to its output.
inline Step CopyThrough(uint32_t chunk, uint32_t count, uint8_t flags) {
  Step step;
  step.op = Op::kCopy;
  step.flags = flags;
  step.src = Buffer::kInput;
  step.dst = Buffer::kOutput;
  step.src_chunk = step.dst_chunk = chunk;
  step.count = static_cast<uint16_t>(count);
  return step;
}

}  // namespace horoacc::schedule
