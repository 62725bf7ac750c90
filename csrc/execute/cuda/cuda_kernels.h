#pragma once
/* Persistent kernels (mode K), whose blocks wait for each other: what the CUDA plug-in offers
   beside cuda_plugin.h. A table of its own, found by its own symbol: a plug-in may lack it. */
#include "execute/cuda/cuda_plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HA_CUDA_KERNELS_VERSION 1
#define HA_CUDA_KERNELS_SYMBOL "horoacc_cuda_kernels_v1"

/* How other processes find a rank's memory. */
typedef struct ha_cuda_kernel_memory {
  unsigned char bytes[80];
} ha_cuda_kernel_memory;

typedef struct ha_cuda_kernels {
  unsigned version;
  /* Uploads a program (kernel_compiler.h) with memory for its ranks, on a `device` of this process.
     `rank` is this process's, on a GPU that no other rank uses; -1: all ranks are virtual, on this
     GPU, in one launch. Waits for the GPU. */
  int (*create)(void** self, int device, const void* program, size_t bytes, int rank,
                ha_cuda_error* error);
  /* After every launch has ended on all ranks. */
  void (*destroy)(void* self);
  /* Ranks in processes: all give what they export to all, in the order of the ranks, before the
     first launch. Two ranks on one GPU are an error. */
  int (*export_memory)(void* self, ha_cuda_kernel_memory* memory, ha_cuda_error* error);
  int (*import_memory)(void* self, const ha_cuda_kernel_memory* memories, ha_cuda_error* error);
  /* Of a rank in a process: its input and output, which its peers can reach. */
  int (*buffers)(void* self, void** input, void** output, ha_cuda_error* error);
  /* One launch on `stream`, behind the launch before it; waits for nothing. Virtual ranks: every
     rank's input and output, which may be the same. A rank in a process: both null, for its
     buffers() are meant. An error if the blocks would not all be on the GPU at once, or the stream
     is being captured into a graph; nothing was launched then. `seconds`: when the launch gives up
     by itself; 0: never. Ranks in processes launch what they share in one order, and nothing else
     that keeps blocks from the GPU for long. */
  int (*launch)(void* self, void* stream, const void* const* inputs, void* const* outputs,
                double seconds, ha_cuda_error* error);
  /* From any thread, at any time: every wait of the launches ends soon, and no other launch will be
     accepted. */
  void (*abort)(void* self);
  /* When the launch has ended: an error that says whether it was aborted or past its deadline, and
     where it waited. Its outputs hold nothing of use then. */
  int (*outcome)(void* self, ha_cuda_error* error);
} ha_cuda_kernels;

typedef const ha_cuda_kernels* (*ha_cuda_kernels_entry)(void);

#ifdef __cplusplus
}
#endif
