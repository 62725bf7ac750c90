#pragma once
// One source for CPUs and GPUs: nvcc compiles marked functions for both, other compilers for CPUs.

#if defined(__CUDACC__)
#define HA_HOST_DEVICE __host__ __device__
#else
#define HA_HOST_DEVICE
#endif

/// Before a loop of a kernel: its body is in the machine code once.
#if defined(__CUDA_ARCH__)
#define HA_ROLLED _Pragma("unroll 1")
/// Before a loop of a kernel with a constant end: its indices are constants, its arrays registers.
#define HA_UNROLLED _Pragma("unroll")
#else
#define HA_ROLLED
#define HA_UNROLLED
#endif

/// Always inlined, so that no file runs code that was compiled for another instruction set.
#define HA_INLINE [[gnu::always_inline]] HA_HOST_DEVICE inline
