#pragma once
// The tensors of a decision on a GPU, cut into windows that fit into a fusion buffer. The cut is a
// pure function, so all ranks cut alike.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "execute/cuda/host/device_call.h"
#include "execute/cuda/host/gpu_group.h"

namespace horoacc::cuda {

/// A tensor of this rank.
struct BucketTensor {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  uint64_t count = 0;
  DType type = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  Scale scale{};
};

/// Part of a tensor, and where it lies in the buffer.
struct BucketPart {
  size_t tensor = 0;
  uint64_t first_byte = 0;
  uint64_t bytes = 0;
  uint64_t offset = 0;
};

/// Elements of one kind, one after the other in the buffer, which one launch reduces. What lies
/// between tensors goes with them. Each tensor of an Adasum is of a kind of its own.
struct BucketRun {
  uint64_t offset = 0;
  uint64_t count = 0;
  DType type = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  Scale scale{};
};

struct BucketWindow {
  std::vector<BucketPart> parts;
  std::vector<BucketRun> runs;
};

/// `window_bytes` is a multiple of 2048.
[[nodiscard]] std::vector<BucketWindow> CutBucket(const std::vector<BucketTensor>& tensors,
                                                  size_t window_bytes);

/// This rank's shard of so many elements: the first, and the end.
[[nodiscard]] std::pair<uint64_t, uint64_t> ShardOf(const GpuGroup& group, uint64_t count);

/// The bucket of one decision: the launches of a mode, in this rank's part of a GPU group.
class Bucket {
 public:
  /// Its windows lie in so many slots of the fusion buffer in turn. To be made in the order of the
  /// decisions, since it reserves the numbers of its windows.
  Bucket(GpuGroup& group, std::vector<BucketTensor> tensors, uint32_t slots);

  [[nodiscard]] GpuGroup& group() const { return group_; }
  [[nodiscard]] size_t windows() const { return windows_.size(); }
  /// Of the window in the GPU group's line; the same on all ranks.
  [[nodiscard]] uint64_t number(size_t window) const { return first_ + window; }
  [[nodiscard]] const BucketWindow& window(size_t window) const { return windows_[window]; }
  /// Of the window; one launch reduces each.
  [[nodiscard]] const std::vector<BucketRun>& runs(size_t window) const {
    return windows_[window].runs;
  }
  /// One launch that copies the tensors to this rank's buffer, or back.
  [[nodiscard]] Status Pack(size_t window) const { return Move(window, true); }
  [[nodiscard]] Status Unpack(size_t window) const { return Move(window, false); }
  /// A launch on `stream` for each kind of elements that reduces from all ranks' buffers to all:
  /// the whole window, or this rank's shard of it.
  [[nodiscard]] Status ReduceAll(size_t window, void* stream) const;
  [[nodiscard]] Status ReduceShard(size_t window, void* stream) const;

 private:
  [[nodiscard]] Status Move(size_t window, bool packs) const;
  [[nodiscard]] Status Reduce(const BucketRun& run, uint64_t first, uint64_t last,
                              void* stream) const;

  GpuGroup& group_;
  const std::vector<BucketTensor> tensors_;
  std::vector<BucketWindow> windows_;
  const uint64_t first_;
};

}  // namespace horoacc::cuda
