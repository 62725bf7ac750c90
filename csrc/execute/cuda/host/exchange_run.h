#pragma once
// Collectives in which every rank takes parts of its peers' inputs into its own output, on GPUs: an
// all-gather, a broadcast, an all-to-all, a reduce-scatter.
#include <vector>

#include "execute/cuda/host/gpu_run.h"
#include "execute/shared_memory/exchange.h"

namespace horoacc::cuda {

/// Every rank shows a window of its input in its fusion buffer, and its kernels take from all
/// buffers. The host tells the others when that is done, once it is: no kernel and no stream waits
/// for another process. In any mode, for it needs the others' memory alone.
class ExchangeRun final : public GpuRun {
 public:
  /// `calls`: whose tensors these are; inputs and outputs of `pieces` lie on the GPU.
  ExchangeRun(GpuGroup& gpu_group, std::vector<DeviceCall*> calls,
              std::vector<ExchangePiece> pieces);

 private:
  enum class Step { kShow, kShown, kTake, kTaken, kLeave };
  struct Window {
    size_t piece;
    uint64_t first, last;  ///< bytes
  };
  [[nodiscard]] Result<bool> Go() override;
  [[nodiscard]] Status Show();
  [[nodiscard]] Status Take();
  /// What is on the stream has ended: says so to the others, in a count of this rank's peer info.
  [[nodiscard]] Result<bool> Tell(std::atomic<uint64_t> GpuPeerInfo::* count);
  [[nodiscard]] bool AllHave(std::atomic<uint64_t> GpuPeerInfo::* count) const;

  const std::vector<ExchangePiece> pieces_;
  std::vector<Window> windows_;
  Step step_ = Step::kShow;
  size_t window_ = 0;
  uint64_t number_ = 0;  ///< of the window among the GPU group's
  GpuEvent ended_;
};

}  // namespace horoacc::cuda
