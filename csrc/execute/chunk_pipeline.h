#pragma once
// Memory of a reduction that fills while the reduction runs, and is emptied while it runs.
#include <cstdint>

#include "base/result.h"

namespace horoacc {

/// Positions are bytes of the vector of a decision's tensors, one after the other, each of which
/// begins at a multiple of kGrain. One thread at a time. Nothing waits.
class ChunkPipeline {
 public:
  static constexpr uint64_t kGrain = 64;

  virtual ~ChunkPipeline() = default;
  /// Up to where this rank's input is there. Never less than before.
  [[nodiscard]] virtual Result<uint64_t> Arrived() = 0;
  /// Up to `end` this rank has its result, which nobody will change: it may go.
  [[nodiscard]] virtual Status Leave(uint64_t end) = 0;
};

}  // namespace horoacc
