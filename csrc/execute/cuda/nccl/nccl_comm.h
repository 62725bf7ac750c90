#pragma once
// NCCL's communicator of a GPU group.
#include <memory>
#include <span>

#include "execute/cuda/device/gpu.h"
#include "execute/cuda/host/bucket.h"
#include "execute/cuda/nccl/nccl_calls.h"

namespace horoacc::cuda {

/// Whether NCCL can reduce it: its types and operations, and factors of floats alone.
[[nodiscard]] bool NcclReduces(DType type, ReduceOp op, const Scale& scale);

/// No call waits: Settled asks whether NCCL is through. One thread at a time.
class NcclComm {
 public:
  NcclComm(std::shared_ptr<Gpu> gpu, NcclCalls calls) : gpu_(std::move(gpu)), calls_(calls) {}
  /// Its kernels must have ended, unless another rank is gone.
  ~NcclComm() { Abort(); }
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  /// To be called on one rank, which gives the id to the others.
  [[nodiscard]] Result<NcclId> MakeId() const;
  /// Called on all ranks. Settled says when they have found each other.
  [[nodiscard]] Status Begin(const NcclId& id, uint32_t ranks, uint32_t me);
  /// Whether the last call is through, and its kernels are on the stream; no other call may be made
  /// before. An error, which may be another rank's, is final.
  [[nodiscard]] Result<bool> Settled() const;
  /// Begins to reduce the runs in place in this rank's buffer.
  [[nodiscard]] Status Reduce(std::span<const BucketRun> runs, std::byte* buffer, void* stream);
  /// All its kernels end soon, whatever the other ranks do. No call can be made afterwards.
  void Abort();

 private:
  /// Calls `body` with the GPU as the thread's current one, which NCCL uses.
  template <typename Body>
  [[nodiscard]] Status On(Body body) const;

  const std::shared_ptr<Gpu> gpu_;
  const NcclCalls calls_;
  void* comm_ = nullptr;
};

}  // namespace horoacc::cuda
