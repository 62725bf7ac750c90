#pragma once
// Allreduce of private memory on three ranks or more.
#include <memory>
#include <vector>

#include "execute/execution.h"
#include "execute/shared_memory/window_ring.h"

namespace horoacc {

/// Copy in, reduce, copy out, window by window and all three at once. The reduction of a window
/// is cut into slices that any rank claims; the sum lands in the staging place of one rank, from
/// which all copy out. 5S + S/P bytes a rank through the cache, 2S of them to memory.
class TwoPhaseWindows final : public Execution {
 public:
  TwoPhaseWindows(const SetContext& context, ExecSlot& slot, std::vector<ReducePiece> pieces);
  bool Advance() override;
  [[nodiscard]] bool complete() const override { return ring_.consumed() == ring_.windows(); }
  [[nodiscard]] bool finished() const override { return ring_.AllConsumed(); }
  [[nodiscard]] bool failed() const override { return ring_.failed(); }

 private:
  struct Window {
    uint32_t piece;
    uint64_t first, last;  ///< elements
  };
  static std::vector<Window> Cut(const std::vector<ReducePiece>& pieces, uint64_t window_bytes);

  bool CopyOut();
  bool ReduceSlice();
  bool CopyIn();
  [[nodiscard]] uint64_t DoneCountOf(uint64_t window) const;
  /// The rank in whose place the sum of a window lands.
  [[nodiscard]] uint32_t HolderOf(uint64_t window) const {
    return context_.present[window % context_.present.size()];
  }

  const SetContext& context_;
  ExecSlot& slot_;
  std::vector<ReducePiece> pieces_;
  std::vector<Window> windows_;
  WindowRing ring_;
  uint64_t slices_per_window_;
};

}  // namespace horoacc
