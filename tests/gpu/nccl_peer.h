#pragma once
// NCCL, if its library can be loaded, as the peer that persistent kernels are measured against: all
// ranks in one process on one GPU (NCCL_MULTI_RANK_GPU_ENABLE, from NCCL 2.30 on).
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "execute/cuda/nccl/nccl_calls.h"

namespace horoacc::cuda {

class NcclPeer {
 public:
  /// `library`: path or soname. The error says what is missing.
  static Result<NcclPeer> Make(const std::string& library, uint32_t ranks, uint32_t blocks);
  NcclPeer(NcclPeer&& other) noexcept
      : calls_(other.calls_), comms_(std::move(other.comms_)), streams_(std::move(other.streams_)) {
    other.comms_.clear();
    other.streams_.clear();
  }
  NcclPeer(const NcclPeer&) = delete;
  NcclPeer& operator=(const NcclPeer&) = delete;
  ~NcclPeer() {
    for (void* comm : comms_) calls_.destroy(comm);
    for (cudaStream_t stream : streams_) static_cast<void>(cudaStreamDestroy(stream));
  }

  [[nodiscard]] std::string version() const { return calls_.Version(); }

  /// Enqueues the sum of float32, one call a rank.
  Status Allreduce(const std::vector<void*>& inputs, const std::vector<void*>& outputs,
                   size_t count) {
    HA_TRY(Check(calls_.group_start()));
    for (size_t r = 0; r < comms_.size(); ++r) {
      HA_TRY(Check(calls_.allreduce(inputs[r], outputs[r], count, NcclTypeOf(DType::kFloat32),
                                    NcclOpOf(ReduceOp::kSum), comms_[r], streams_[r])));
    }
    return Check(calls_.group_end());
  }

 private:
  explicit NcclPeer(const NcclCalls& calls) : calls_(calls) {}
  [[nodiscard]] Status Check(int code) const { return calls_.Check(code, nullptr); }

  NcclCalls calls_;
  std::vector<void*> comms_;
  std::vector<cudaStream_t> streams_;
};

inline Result<NcclPeer> NcclPeer::Make(const std::string& library, uint32_t ranks,
                                       uint32_t blocks) {
  // Read when the library is first used. The ranks' blocks must fit the GPU together.
  ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  ::setenv("NCCL_MAX_CTAS", std::to_string(blocks).c_str(), 1);
  HA_ASSIGN(const NcclCalls calls, LoadNccl(library));
  NcclPeer peer(calls);
  const std::vector<int> devices(ranks, 0);
  std::vector<void*> comms(ranks);
  HA_TRY(peer.Check(calls.init_all(comms.data(), static_cast<int>(ranks), devices.data())));
  peer.comms_ = std::move(comms);
  for (uint32_t r = 0; r < ranks; ++r) {
    cudaStream_t stream = nullptr;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) {
      return MakeError(ErrorKind::kSystem, "no stream for NCCL");
    }
    peer.streams_.push_back(stream);
  }
  return peer;
}

}  // namespace horoacc::cuda
