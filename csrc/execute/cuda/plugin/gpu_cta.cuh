#pragma once
// Blocks of a persistent kernel on a GPU (kernel_wait.h has their interface). Included only by the
// plug-in's .cu files.
//
// Ranks may be on other GPUs, so all accesses to shared counts and words have system scope. All
// threads of a block write data, then a barrier follows, and one thread releases the count: its
// fence covers the writes that it has seen, which after the barrier are the whole block's. A reader
// acquires in one thread, and after a barrier the other threads' loads come from memory. No thread
// reads a peer's memory through the read-only cache.
#include "execute/cuda/persistent/kernel_wait.h"

namespace horoacc::cuda {

/// Read by the blocks of a launch while they wait: see ha_cuda_watch.
struct GpuWatch {
  uint32_t* abort = nullptr;
  unsigned long long* report = nullptr;
  unsigned long long deadline = 0;  ///< nanoseconds that a launch may take; 0: no limit
};

namespace {

__device__ __forceinline__ unsigned long long Nanoseconds() {
  unsigned long long now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

class GpuCta {
 public:
  __device__ GpuCta(const GpuWatch& watch, CombineArgs& args, uint32_t rank, uint32_t lane,
                    uint32_t channel)
      : watch_(watch),
        args_(args),
        rank_(rank),
        lane_(lane),
        channel_(channel),
        begun_(Nanoseconds()) {}

  // For host and device, since the callers are; no host calls them with this class.
  __host__ __device__ __forceinline__ uint32_t rank() const { return rank_; }
  __host__ __device__ __forceinline__ uint32_t lane() const { return lane_; }
  __host__ __device__ __forceinline__ uint32_t channel() const { return channel_; }
  __host__ __device__ __forceinline__ CombineArgs& combine_args() { return args_; }

  template <typename Body>
  __host__ __device__ __forceinline__ void Each([[maybe_unused]] const Body& body) {
#if defined(__CUDA_ARCH__)
    body(Grid{0, 1, threadIdx.x, blockDim.x});
#endif
  }

  __host__ __device__ __forceinline__ void Sync() {
#if defined(__CUDA_ARCH__)
    __syncthreads();
#endif
  }

  __host__ __device__ __forceinline__ bool Any(bool mine) {
#if defined(__CUDA_ARCH__)
    return __syncthreads_or(mine ? 1 : 0) != 0;
#else
    return mine;
#endif
  }

  __host__ __device__ __forceinline__ uint64_t
  Acquire([[maybe_unused]] const uint64_t* cell) const {
    uint64_t count = 0;
#if defined(__CUDA_ARCH__)
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(count) : "l"(cell) : "memory");
#endif
    return count;
  }

  __host__ __device__ __forceinline__ void Release([[maybe_unused]] uint64_t* cell,
                                                   [[maybe_unused]] uint64_t count) const {
#if defined(__CUDA_ARCH__)
    asm volatile("fence.acq_rel.sys;" ::: "memory");
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(cell), "l"(count) : "memory");
#endif
  }

  __host__ __device__ __forceinline__ uint64_t
  LoadWord([[maybe_unused]] const uint64_t* word) const {
    uint64_t value = 0;
#if defined(__CUDA_ARCH__)
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
#endif
    return value;
  }

  __host__ __device__ __forceinline__ void StoreWord([[maybe_unused]] uint64_t* word,
                                                     [[maybe_unused]] uint64_t value) const {
#if defined(__CUDA_ARCH__)
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
#endif
  }

  /// Reads of the host's memory are slow, so most looks skip them.
  __host__ __device__ __forceinline__ bool GoOn([[maybe_unused]] uint32_t looks) const {
#if defined(__CUDA_ARCH__)
    if ((looks & kLooks) != kLooks) return true;
    if (watch_.deadline != 0 && Nanoseconds() - begun_ > watch_.deadline) {
      asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(watch_.abort), "r"(kPastDeadline)
                   : "memory");
      return false;
    }
    uint32_t abort = 0;
    asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(abort) : "l"(watch_.abort) : "memory");
    return abort == 0;
#else
    return false;
#endif
  }

  __host__ __device__ __forceinline__ void Report([[maybe_unused]] uint64_t where) const {
#if defined(__CUDA_ARCH__)
    atomicCAS(watch_.report, 0ULL, static_cast<unsigned long long>(where));
#endif
  }

 private:
  static constexpr uint32_t kLooks = 1023;
  static constexpr uint32_t kPastDeadline = 2;

  const GpuWatch& watch_;
  CombineArgs& args_;
  const uint32_t rank_, lane_, channel_;
  const unsigned long long begun_;
};

}  // namespace
}  // namespace horoacc::cuda
