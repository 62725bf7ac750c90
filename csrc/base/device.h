#pragma once
// One source for CPUs and GPUs: nvcc compiles what is marked for both sides, other compilers see
// plain functions.

#if defined(__CUDACC__)
#define HA_HOST_DEVICE __host__ __device__
#else
#define HA_HOST_DEVICE
#endif

/// Before a loop of a kernel: its body is in the machine code once.
#if defined(__CUDA_ARCH__)
#define HA_ROLLED _Pragma("unroll 1")
#else
#define HA_ROLLED
#endif

/// Always inlined: a file that is compiled for one instruction set lends no code to the others.
#define HA_INLINE [[gnu::always_inline]] HA_HOST_DEVICE inline
