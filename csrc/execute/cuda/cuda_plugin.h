#pragma once
/* The CUDA plug-in: what libhoroacc.so knows of CUDA. It is a library of its own, so that the core
   neither needs a toolkit to be built nor a driver to be loaded. Plain C. Functions that can fail
   return 0, or another number after filling `error`. */
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HA_CUDA_PLUGIN_VERSION 2
#define HA_CUDA_PLUGIN_SYMBOL "horoacc_cuda_plugin_v2"

typedef struct ha_cuda_error {
  char message[512];
} ha_cuda_error;

/* All pointers to elements are the GPU's, or can be read and written by it. */
typedef struct ha_cuda_reduce {
  const void* const* sources;
  void* const* destinations;
  size_t source_count;
  size_t destination_count;
  size_t count;
  int type; /* a DType of base/dtype.h */
  int op;   /* a ReduceOp */
  double pre, post, divisor;
} ha_cuda_reduce;

typedef struct ha_cuda_tensor {
  const void* from;
  void* to;
  size_t count;
} ha_cuda_tensor;

typedef struct ha_cuda_pack {
  const ha_cuda_tensor* tensors; /* the host's memory; free again when the call returns */
  size_t tensor_count;
  int from_type;
  int to_type;
  double factor;
  unsigned long long* nonfinite; /* the GPU's; NaNs and infinities written are added; or null */
} ha_cuda_pack;

typedef struct ha_cuda_plugin {
  unsigned version;
  /* Takes the `device` of this process into use. */
  int (*open)(void** self, int device, ha_cuda_error* error);
  /* After everything that was enqueued has run. */
  void (*close)(void* self);
  /* One launch each on `stream` (a CUstream or cudaStream_t of the device; null is the default
     stream). Nothing is waited for, except that of the last 16 packs with more than 100 tensors
     the oldest must have begun to run. One thread at a time for one `self`. */
  int (*reduce)(void* self, void* stream, const ha_cuda_reduce* job, ha_cuda_error* error);
  int (*pack)(void* self, void* stream, const ha_cuda_pack* job, ha_cuda_error* error);

  /* What follows waits for nothing, and any thread may call it at any time. */

  /* Whole pages of the host's memory that the GPU is to copy from and to without the host. */
  int (*pin)(void* self, void* memory, size_t bytes, ha_cuda_error* error);
  void (*unpin)(void* self, void* memory);
  /* A stream of the highest priority that does not wait for the default stream. It goes at close.
   */
  int (*create_stream)(void* self, void** stream, ha_cuda_error* error);
  /* Events do not measure time. */
  int (*create_event)(void* self, void** event, ha_cuda_error* error);
  void (*destroy_event)(void* self, void* event);
  /* The event is done when all that is on the stream by now is. An error on a stream that is being
     captured into a graph. */
  int (*record)(void* self, void* event, void* stream, ha_cuda_error* error);
  /* What comes on the stream from now on waits for what the event was last recorded for. */
  int (*wait)(void* self, void* stream, void* event, ha_cuda_error* error);
  int (*is_done)(void* self, void* event, int* done, ha_cuda_error* error);
  /* Between the GPU's memory and the host's, either way. The host's is not pinned: may wait. */
  int (*copy)(void* self, void* stream, void* to, const void* from, size_t bytes,
              ha_cuda_error* error);
} ha_cuda_plugin;

typedef const ha_cuda_plugin* (*ha_cuda_plugin_entry)(void);

#ifdef __cplusplus
}
#endif
