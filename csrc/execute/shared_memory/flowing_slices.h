#pragma once
// Allreduce of buffers that all ranks can see and that fill while it runs: chunk by chunk, what has
// arrived on all ranks is reduced, and leaves, while more arrives.
#include <memory>
#include <optional>
#include <vector>

#include "execute/chunk_pipeline.h"
#include "execute/execution.h"

namespace horoacc {

/// As DirectSlices, but no slice is claimed before all ranks have its inputs, and results leave
/// with the last slice of their chunk. All ranks give the same `chunk_bytes`.
class FlowingSlices final : public Execution {
 public:
  FlowingSlices(const SetContext& context, ExecSlot& slot, ReduceList list, uint64_t chunk_bytes,
                std::unique_ptr<ChunkPipeline> flow);
  bool Advance() override;
  [[nodiscard]] bool complete() const override { return left_ == chunks_; }
  [[nodiscard]] bool failed() const override { return error_.has_value(); }
  [[nodiscard]] Error failure() const override { return *error_; }

 private:
  [[nodiscard]] Result<bool> Turn();
  [[nodiscard]] Result<bool> Show();
  [[nodiscard]] Result<bool> Leave();
  [[nodiscard]] bool ReduceSlice();
  void Reduce(uint64_t begin, uint64_t end) const;
  [[nodiscard]] bool AllShow(uint64_t end) const;
  [[nodiscard]] bool IsDone(uint64_t chunk) const;
  [[nodiscard]] uint64_t EndOf(uint64_t chunk) const;

  const SetContext& context_;
  ExecSlot& slot_;
  const ReduceList list_;
  const std::unique_ptr<ChunkPipeline> pipeline_;
  std::vector<uint64_t> starts_;  ///< of every piece in the vector, and its length
  uint64_t chunk_bytes_ = 0;
  uint64_t slice_bytes_ = 0;
  uint64_t slices_per_chunk_ = 0;
  uint64_t chunks_ = 0;
  uint64_t shown_ = 0;  ///< position
  uint64_t left_ = 0;   ///< chunks
  std::optional<Error> error_;
};

}  // namespace horoacc
