#pragma once
// NCCL, if its library can be loaded, as the peer that persistent kernels are measured against: all
// ranks in one process on one GPU (NCCL_MULTI_RANK_GPU_ENABLE, from NCCL 2.30 on). Its declarations
// are these few, so nothing of NCCL is needed to compile.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/result.h"

namespace horoacc::cuda {

class NcclPeer {
 public:
  /// `library`: its path, or its soname. kUnsupported says what is missing.
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

  [[nodiscard]] std::string version() const {
    int number = 0;
    calls_.version(&number);
    return std::to_string(number / 10000) + "." + std::to_string(number / 100 % 100) + "." +
           std::to_string(number % 100);
  }

  /// Enqueues the sum of float32, one call a rank.
  Status Allreduce(const std::vector<void*>& inputs, const std::vector<void*>& outputs,
                   size_t count) {
    constexpr int kFloat32 = 7;
    constexpr int kSum = 0;
    HA_TRY(Check(calls_.group_start()));
    for (size_t r = 0; r < comms_.size(); ++r) {
      HA_TRY(Check(
          calls_.allreduce(inputs[r], outputs[r], count, kFloat32, kSum, comms_[r], streams_[r])));
    }
    return Check(calls_.group_end());
  }

 private:
  struct Calls {
    int (*version)(int*);
    const char* (*error)(int);
    int (*init)(void**, int, const int*);
    int (*destroy)(void*);
    int (*group_start)();
    int (*group_end)();
    int (*allreduce)(const void*, void*, size_t, int, int, void*, cudaStream_t);
  };
  explicit NcclPeer(const Calls& calls) : calls_(calls) {}
  [[nodiscard]] Status Check(int code) const {
    if (code == 0) return {};
    return MakeError(ErrorKind::kUnsupported, std::string("NCCL: ") + calls_.error(code));
  }

  Calls calls_;
  std::vector<void*> comms_;
  std::vector<cudaStream_t> streams_;
};

inline Result<NcclPeer> NcclPeer::Make(const std::string& library, uint32_t ranks,
                                       uint32_t blocks) {
  // Read when the library is first used. The ranks' blocks must fit the GPU together.
  ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  ::setenv("NCCL_MAX_CTAS", std::to_string(blocks).c_str(), 1);
  void* const loaded = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) return MakeError(ErrorKind::kUnsupported, ::dlerror());
  Calls calls{};
  bool found = true;
  const auto find = [&](auto& call, const char* name) {
    call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(::dlsym(loaded, name));
    found = found && call != nullptr;
  };
  find(calls.version, "ncclGetVersion");
  find(calls.error, "ncclGetErrorString");
  find(calls.init, "ncclCommInitAll");
  find(calls.destroy, "ncclCommDestroy");
  find(calls.group_start, "ncclGroupStart");
  find(calls.group_end, "ncclGroupEnd");
  find(calls.allreduce, "ncclAllReduce");
  if (!found) return MakeError(ErrorKind::kUnsupported, library + " is no NCCL");
  NcclPeer peer(calls);
  const std::vector<int> devices(ranks, 0);
  std::vector<void*> comms(ranks);
  HA_TRY(peer.Check(calls.init(comms.data(), static_cast<int>(ranks), devices.data())));
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
