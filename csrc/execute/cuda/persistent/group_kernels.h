#pragma once
// A GPU group's persistent kernels (mode K): their programs, and memory for them behind each rank's
// fusion buffer.
#include <memory>

#include "execute/cuda/device/pinned_blocks.h"
#include "execute/cuda/host/bucket.h"
#include "execute/cuda/persistent/kernel_programs.h"

namespace horoacc::cuda {

/// One thread at a time. Launches follow each other on the GPU group's stream for
/// reductions.
class GroupKernels {
 public:
  /// Bytes behind a fusion buffer.
  [[nodiscard]] static uint64_t BytesBeside(uint64_t buffer_bytes);

  GroupKernels(GpuGroup& group, std::shared_ptr<PinnedBlocks> blocks, KernelRules rules);
  ~GroupKernels();
  GroupKernels(const GroupKernels&) = delete;
  GroupKernels& operator=(const GroupKernels&) = delete;

  /// An error if the setting's algorithm has no program, or the host could not abort a kernel.
  [[nodiscard]] Status Check() const;
  /// One launch: reduces the run's elements from all ranks' fusion buffers to all. False: there is
  /// no memory left for the run's program, and nothing was launched; call Renew.
  [[nodiscard]] Result<bool> Launch(const BucketRun& run);
  /// To be called when the launches have ended: an error if one gave up.
  [[nodiscard]] Status Outcome() const;
  /// Every wait of the launched kernels ends soon, and no others are launched.
  void Abort() const;

  /// Makes room, together with the other ranks, which come to the same call. To be called until it
  /// is true; does not wait.
  [[nodiscard]] Result<bool> Renew();

 private:
  enum class Renewal { kNone, kDraining, kDrained, kClearing, kCleared };
  [[nodiscard]] Status Upload(const PlacedProgram& program);
  [[nodiscard]] std::byte* memory(uint32_t index) const;

  GpuGroup& group_;
  const std::shared_ptr<PinnedBlocks> blocks_;
  const uint64_t bytes_;
  KernelPrograms programs_;
  ha_cuda_watch* watch_ = nullptr;  ///< pinned; null: there was no memory
  Renewal renewal_ = Renewal::kNone;
  uint64_t renewals_ = 0;
  GpuEvent ended_;  ///< recorded when it began to drain, or to clear
};

}  // namespace horoacc::cuda
