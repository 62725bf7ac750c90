#pragma once
// Adasum on GPUs: the products of a bucket's tensors, and the factors that follow from them.
#include <memory>
#include <optional>
#include <vector>

#include "execute/cuda/host/bucket.h"
#include "execute/execution.h"
#include "execute/kernels/adasum.h"
#include "execute/kernels/adasum_lanes.h"

namespace horoacc::cuda {

/// The chunks of all tensors belong to the ranks in turn, and so do the pairs of ranks. A rank's
/// GPU adds up the products of its chunks into pinned memory that all ranks see; its host adds up
/// those of its pairs over all chunks, in the CPU's order, and then works out the factors from all
/// pairs.
class AdasumSums {
 public:
  /// Tells the other ranks whether there is such memory here.
  AdasumSums(GpuGroup& group, std::vector<BucketTensor> tensors,
             std::shared_ptr<PinnedBlocks> blocks, const SetContext& context);
  ~AdasumSums();
  AdasumSums(const AdasumSums&) = delete;
  AdasumSums& operator=(const AdasumSums&) = delete;

  /// Whether all ranks have the memory, once all have told. Nothing else may be called without it.
  [[nodiscard]] std::optional<bool> OnAllRanks();
  /// A launch for a tensor's part of a window that all ranks show: this rank's chunks.
  [[nodiscard]] Status Multiply(const BucketPart& part) const;
  /// Once all ranks' GPUs have multiplied all windows: adds up some chunks. True: that were all.
  bool AddSome();
  void TellAdded() const { group_.Tell(&GpuPeerInfo::stored, added_); }
  [[nodiscard]] bool AllHaveAdded() const { return group_.AllHave(&GpuPeerInfo::stored, added_); }
  /// Once all ranks have added up: the factors of one more tensor. True: that were all.
  bool WeighNext();
  /// A launch that combines this rank's shard of the part in all buffers.
  [[nodiscard]] Status Combine(const BucketPart& part) const;

 private:
  /// What a rank has put into its memory: lanes of its chunks, then its pairs' sums of each tensor.
  [[nodiscard]] double* MemoryOf(uint64_t rank) const;
  [[nodiscard]] double* LanesOf(uint64_t chunk) const {
    return MemoryOf(chunk % group_.ranks()) + chunk / group_.ranks() * pairs_ * kPairDoubles;
  }
  [[nodiscard]] TwoPartSum* SumsOf(uint64_t rank, size_t tensor) const {
    return reinterpret_cast<TwoPartSum*>(MemoryOf(rank) + lanes_) + tensor * own_pairs_;
  }
  [[nodiscard]] Status Launch(const BucketPart& part, uint64_t first, uint64_t count,
                              ha_cuda_adasum job) const;

  GpuGroup& group_;
  const std::vector<BucketTensor> tensors_;
  const std::shared_ptr<PinnedBlocks> blocks_;
  const SetContext& context_;
  const size_t pairs_;
  const size_t own_pairs_;        ///< of a rank, at most
  const uint64_t told_, added_;   ///< numbers of what it tells: where, and that its sums are there
  std::vector<uint64_t> starts_;  ///< first chunk of every tensor, and the number of chunks
  uint64_t lanes_ = 0;            ///< doubles of lanes in a rank's memory
  std::byte* own_ = nullptr;
  bool looked_ = false;  ///< and not all ranks have memory
  uint64_t chunk_ = 0;   ///< the next to be added up
  size_t tensor_ = 0;    ///< whose it is
  std::vector<TwoPartSum> products_;
  std::vector<std::vector<double>> factors_;  ///< by tensor, as far as they are known
};

}  // namespace horoacc::cuda
