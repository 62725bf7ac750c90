#pragma once
// The elements of inputs and outputs that form a schedule's chunks. Chunks are parts of the whole
// vector here, and a window is a piece of each of them, so that vectors and shards are alike.
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "execute/cuda/persistent/kernel_program.h"
#include "schedule/schedule.h"

namespace horoacc::cuda {

struct KernelShapes {
  /// `sizes` as in KernelRequest, each counting for `unit` elements; chunks of a vector begin at
  /// multiples of `grain`.
  static Result<KernelShapes> Of(const schedule::Schedule& schedule, uint64_t count,
                                 const std::vector<uint64_t>& sizes, uint64_t unit, uint64_t grain);

  std::vector<KernelPart> parts;  ///< [2 · rank + output][chunk]
  std::vector<uint64_t> kept;     ///< [rank][chunk of scratch]
  uint32_t scratch_chunks = 0;
  uint64_t longest = 0;  ///< part
  uint64_t most_input = 0, most_output = 0;
};

}  // namespace horoacc::cuda
