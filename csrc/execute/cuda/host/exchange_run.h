#pragma once
// Collectives in which every rank takes parts of its peers' inputs into its own output, on GPUs: an
// all-gather, a broadcast, an all-to-all, a reduce-scatter.
#include <vector>

#include "execute/cuda/host/gpu_run.h"
#include "execute/shared_memory/exchange.h"

namespace horoacc::cuda {

/// Every rank copies a window of its input into its fusion buffer, and its kernels take parts from
/// all buffers. The hosts tell each other when the GPU has done either: no kernel and no stream
/// waits for another process. Works in any mode that opens the others' memory.
class ExchangeRun final : public GpuRun {
 public:
  /// `calls` own the tensors; inputs and outputs of `pieces` lie on the GPU.
  ExchangeRun(GpuGroup& group, std::vector<DeviceCall*> calls, std::vector<ExchangePiece> pieces);

 private:
  enum class Step { kShow, kShown, kTake, kTaken, kLeave };
  struct Window {
    size_t piece;
    uint64_t first, last;  ///< bytes
  };
  [[nodiscard]] Result<bool> Go() override;
  [[nodiscard]] Status Show();
  [[nodiscard]] Status Take();

  const std::vector<ExchangePiece> pieces_;
  std::vector<Window> windows_;
  Step step_ = Step::kShow;
  size_t window_ = 0;
  uint64_t number_ = 0;  ///< of the window in the GPU group's line
  GpuEvent ended_;
};

}  // namespace horoacc::cuda
