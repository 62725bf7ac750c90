#pragma once
// Allreduce of buffers that all ranks can see: reduced in place, in claimed slices.
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "execute/chunk_pipeline.h"
#include "execute/execution.h"

namespace horoacc {

/// 2S bytes a rank, the least possible: every input byte is loaded once and every output byte
/// stored once, by whichever rank claims the slice.
///
/// With a pipeline the buffers fill while the reduction runs: no slice is claimed before all ranks
/// have its inputs, and results leave with the last slice of their chunk. Without one the whole
/// vector is a single chunk that has arrived.
class DirectSlices final : public Execution {
 public:
  DirectSlices(const SetContext& context, ExecSlot& slot, ReduceList list)
      : DirectSlices(context, slot, std::move(list), 0, nullptr) {}
  /// All ranks give the same `chunk_bytes`; 0: one chunk.
  DirectSlices(const SetContext& context, ExecSlot& slot, ReduceList list, uint64_t chunk_bytes,
               std::unique_ptr<ChunkPipeline> pipeline);
  bool Advance() override;
  [[nodiscard]] bool complete() const override { return left_ == chunks_; }
  [[nodiscard]] bool failed() const override { return error_.has_value(); }
  [[nodiscard]] Error failure() const override { return *error_; }

  /// Reduces everything at once, for the last rank to arrive.
  static void ReduceAll(const SetContext& context, const ReduceList& list);

 private:
  [[nodiscard]] Result<bool> Show();
  [[nodiscard]] Result<bool> Leave();
  [[nodiscard]] bool ClaimSlice();
  void ReduceBytes(uint64_t begin, uint64_t end) const;
  [[nodiscard]] bool AllShow(uint64_t end) const;
  [[nodiscard]] bool IsDone(uint64_t chunk) const;
  [[nodiscard]] uint64_t EndOf(uint64_t chunk) const;

  const SetContext& context_;
  ExecSlot& slot_;
  const ReduceList list_;
  const std::unique_ptr<ChunkPipeline> pipeline_;  ///< null: all of the input is there
  std::vector<uint64_t> starts_;  ///< position of every piece in the vector, and its length
  uint64_t chunk_bytes_ = 0;
  uint64_t slice_bytes_ = 0;
  uint64_t slices_per_chunk_ = 0;
  uint64_t chunks_ = 0;
  uint64_t shown_ = 0;  ///< up to this position the ranks know that this rank's input is there
  uint64_t left_ = 0;   ///< chunks whose results this rank has
  std::optional<Error> error_;
};

}  // namespace horoacc
