#pragma once
// Allreduce of buffers that all ranks can see: reduced in place, in claimed slices.
#include <memory>
#include <vector>

#include "execute/execution.h"

namespace horoacc {

/// 2S bytes a rank, the least possible: every input byte is loaded once and every output byte
/// stored once, by whichever rank claims the slice. No rank waits before the end.
class DirectSlices final : public Execution {
 public:
  DirectSlices(const SetContext& context, ExecSlot& slot, ReduceList list);
  bool Advance() override;
  [[nodiscard]] bool complete() const override;

  /// Reduces everything at once, for the last rank to arrive.
  static void ReduceAll(const SetContext& context, const ReduceList& list);
  /// Elements from `first` to before `last` of a piece. `whole_bytes`: of what is reduced before
  /// anybody reads the result.
  static void ReduceRange(const SetContext& context, const ReducePiece& piece, uint64_t first,
                          uint64_t last, uint64_t whole_bytes);

 private:
  void ReduceSlice(uint64_t slice) const;

  const SetContext& context_;
  ExecSlot& slot_;
  ReduceList list_;
  std::vector<uint64_t> starts_;  ///< byte position of every piece, and the total
  uint64_t slice_bytes_ = 0;
  uint64_t slices_ = 0;
  bool claimed_all_ = false;
};

}  // namespace horoacc
