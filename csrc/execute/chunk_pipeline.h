#pragma once
// The copies into and out of the memory of a reduction, while the reduction runs.
#include <cstdint>

#include "base/result.h"

namespace horoacc {

/// Positions are bytes of the vector of a decision's tensors, one after the other, each of which
/// begins at a multiple of kGrain. One thread at a time. Nothing waits.
class ChunkPipeline {
 public:
  static constexpr uint64_t kGrain = 64;

  virtual ~ChunkPipeline() = default;
  /// The position up to which this rank's input has been copied in. Never less than before.
  [[nodiscard]] virtual Result<uint64_t> Arrived() = 0;
  /// Up to `end` this rank has its final result, which may be copied out.
  [[nodiscard]] virtual Status Leave(uint64_t end) = 0;
};

}  // namespace horoacc
