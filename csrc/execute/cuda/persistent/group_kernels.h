#pragma once
// What a GPU group has for persistent kernels (mode K): their programs, and memory for them behind
// each rank's fusion buffer.
#include <memory>

#include "execute/cuda/host/bucket.h"
#include "execute/cuda/host/pinned_blocks.h"
#include "execute/cuda/persistent/kernel_programs.h"

namespace horoacc::cuda {

/// One thread at a time. Launches follow each other on the GPU group's stream.
class GroupKernels {
 public:
  /// Bytes behind a fusion buffer.
  [[nodiscard]] static uint64_t BytesBeside(uint64_t buffer_bytes);

  GroupKernels(GpuGroup& gpu_group, std::shared_ptr<PinnedBlocks> blocks, KernelRules rules);
  ~GroupKernels();
  GroupKernels(const GroupKernels&) = delete;
  GroupKernels& operator=(const GroupKernels&) = delete;

  /// Whether the programs that are ordered can be had, and ended; nothing is launched otherwise.
  [[nodiscard]] Status Check() const;
  /// One launch: the run's elements, from all ranks' fusion buffers to all. False: the programs
  /// need memory that others have, and nothing was launched. Renew, then.
  [[nodiscard]] Result<bool> Launch(const BucketRun& run);
  /// When what was launched has ended: whether it was given up.
  [[nodiscard]] Status Outcome() const;
  /// Every wait of what was launched ends soon, and nothing else will be launched.
  void Abort() const;

  /// Makes room, together with the other ranks, which come to the same call: to be called until it
  /// is true. Nothing waits.
  [[nodiscard]] Result<bool> Renew();

 private:
  enum class Renewal { kNone, kDraining, kDrained, kClearing, kCleared };
  [[nodiscard]] Status Upload(const PlacedProgram& program);
  [[nodiscard]] std::byte* memory(uint32_t index) const;
  [[nodiscard]] bool AllHave(std::atomic<uint64_t> GpuPeerInfo::* count) const;

  GpuGroup& gpu_group_;
  const std::shared_ptr<PinnedBlocks> blocks_;
  const uint64_t bytes_;
  KernelPrograms programs_;
  ha_cuda_watch* watch_ = nullptr;  ///< pinned; null: there was no memory
  Renewal renewal_ = Renewal::kNone;
  uint64_t renewals_ = 0;
  GpuEvent ended_;  ///< what was on the stream when it began to drain, or to clear
};

}  // namespace horoacc::cuda
