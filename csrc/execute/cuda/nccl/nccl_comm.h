#pragma once
// A communicator of NCCL, among the GPUs of a GPU group.
#include <memory>
#include <span>

#include "execute/cuda/host/bucket.h"
#include "execute/cuda/host/gpu.h"
#include "execute/cuda/nccl/nccl_calls.h"

namespace horoacc::cuda {

/// Whether NCCL can reduce it: its types and operations, and factors of floats alone.
[[nodiscard]] bool NcclReduces(DType type, ReduceOp op, const Scale& scale);

/// Nothing waits: what NCCL has begun is asked for. One thread at a time.
class NcclComm {
 public:
  NcclComm(std::shared_ptr<Gpu> gpu, NcclCalls calls) : gpu_(std::move(gpu)), calls_(calls) {}
  /// The GPU must have nothing left to do for it, unless another rank is gone.
  ~NcclComm() { Abort(); }
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  /// For one rank of a GPU group, which tells it to the others.
  [[nodiscard]] Result<NcclId> MakeId() const;
  /// All ranks do so; from then on Settled says when they have found each other.
  [[nodiscard]] Status Begin(const NcclId& id, uint32_t ranks, uint32_t me);
  /// What was begun has been put on its stream. Nothing else may be begun before. An error, of
  /// another rank too, is for good.
  [[nodiscard]] Result<bool> Settled() const;
  /// Begins to reduce the runs, in place, in this rank's buffer.
  [[nodiscard]] Status Reduce(std::span<const BucketRun> runs, std::byte* buffer, void* stream);
  /// Every kernel of it ends soon, whatever the other ranks do. Nothing can be begun afterwards.
  void Abort();

 private:
  /// NCCL works on the thread's current GPU.
  template <typename Body>
  [[nodiscard]] Status On(Body body) const;

  const std::shared_ptr<Gpu> gpu_;
  const NcclCalls calls_;
  void* comm_ = nullptr;
};

}  // namespace horoacc::cuda
