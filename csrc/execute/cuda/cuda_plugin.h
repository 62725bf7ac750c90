#pragma once
/* The CUDA plug-in's interface, through which alone libhoroacc.so uses CUDA. It is a library of its
   own, so that the core needs neither a toolkit to be built nor a driver to be loaded. Plain C.
   Functions that can fail return 0, or another number after filling `error`. */
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HA_CUDA_PLUGIN_VERSION 8
#define HA_CUDA_PLUGIN_SYMBOL "horoacc_cuda_plugin_v8"

typedef struct ha_cuda_error {
  char message[512];
} ha_cuda_error;

/* The GPU can read and write through all pointers to elements. */
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

/* One of Adasum's two rounds over elements of all ranks, which are aligned. */
typedef struct ha_cuda_adasum {
  const void* const* sources;
  size_t source_count;
  size_t count;
  int type;
  /* Without `factors`: adds up the products of all pairs of sources. The elements are cut into
     chunks (execute/kernels/adasum.h); the first has `begun` elements before them, a multiple of 8,
     whose products are in `sums` already. `sums`, which this `self` has pinned, has room for the
     lanes (adasum_lanes.h) of chunks `first`, `first + step`, ... */
  size_t begun, first, step;
  double* sums;
  /* With them: all destinations, one for each source, become the sum of factor times source. The
     factors are the host's memory, free again when the call returns. A destination may be a source.
   */
  const double* factors;
  void* const* destinations;
} ha_cuda_adasum;

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

/* The identity of a GPU, and its abilities together with other processes. */
typedef struct ha_cuda_traits {
  unsigned char uuid[16]; /* the same in all processes, unlike the device's number */
  char bus_id[16];        /* of the PCI bus, for messages */
  int shares;             /* other processes can open its memory */
  int stream_words;       /* streams can write words of memory, and wait for them */
  int exclusive;          /* no other process may use it at the same time */
  int concurrent;         /* kernels of several processes run at the same time (MPS) */
  int processors;         /* each holds a block of a persistent kernel at least; 0: it runs none */
} ha_cuda_traits;

/* Names memory for other processes of the host, which open it. */
typedef struct ha_cuda_handle {
  unsigned char bytes[64];
} ha_cuda_handle;

/* The blocks of a persistent kernel read `abort` while they wait, and write `report`. Zeroed memory
   that this `self` has pinned. */
typedef struct ha_cuda_watch {
  uint32_t abort; /* 1, from the host: every wait ends soon; 2: the deadline has passed */
  uint32_t unused;
  uint64_t report; /* where a wait was given up (kernel_wait.h); 0: nowhere */
} ha_cuda_watch;

/* One call of a program (kernel_compiler.h), in one launch. */
typedef struct ha_cuda_program {
  const void* image; /* the host's memory; free again when the call returns */
  size_t bytes;
  const void* uploaded; /* the same on the GPU; null: it is a header alone */
  int rank;             /* whose blocks these are; -1: those of all ranks */
  /* Of every rank, at the addresses of this GPU. A workspace is as long as the header says, and was
     zeroed before the program's first call. */
  const void* const* inputs;
  void* const* outputs;
  void* const* workspaces;
  uint64_t call;  /* of this program with these workspaces: 0, 1, ... */
  double seconds; /* after which it gives up by itself; 0: never */
  ha_cuda_watch* watch;
} ha_cuda_program;

typedef struct ha_cuda_plugin {
  unsigned version;
  /* Opens the `device`, by its number in this process. */
  int (*open)(void** self, int device, ha_cuda_error* error);
  /* After everything that was enqueued has run. */
  void (*close)(void* self);
  /* One launch each on `stream` (a CUstream or cudaStream_t of the device; null is the default
     stream). A pack of more than 100 tensors waits until the 16th such pack before it has begun to
     run; nothing else waits. One thread at a time for one `self`. */
  int (*reduce)(void* self, void* stream, const ha_cuda_reduce* job, ha_cuda_error* error);
  int (*pack)(void* self, void* stream, const ha_cuda_pack* job, ha_cuda_error* error);
  int (*adasum)(void* self, void* stream, const ha_cuda_adasum* job, ha_cuda_error* error);

  /* The functions below do not wait, and any thread may call them at any time. */

  /* Whole pages of the host's memory that the GPU is to copy from and to without the host, and that
     its streams and kernels reach. */
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
  /* Memory of the GPU. */
  int (*zero)(void* self, void* stream, void* memory, size_t bytes, ha_cuda_error* error);

  /* An error: the GPU cannot run the kernels. It can copy nevertheless. */
  int (*traits)(void* self, ha_cuda_traits* traits, ha_cuda_error* error);

  /* Together with other processes. A process closes all that it has opened before the owner frees
     it, and opens nothing of its own. */
  int (*allocate)(void* self, size_t bytes, void** memory, ha_cuda_error* error);
  void (*deallocate)(void* self, void* memory);
  int (*share_memory)(void* self, void* memory, ha_cuda_handle* handle, ha_cuda_error* error);
  int (*open_memory)(void* self, const ha_cuda_handle* handle, void** memory, ha_cuda_error* error);
  void (*close_memory)(void* self, void* memory);
  /* Words of memory that this `self` has pinned, at most 256, in one call of the driver. The GPU
     writes the value when all earlier work of the stream has run and its writes are visible to all;
     work behind a wait begins once every word is the value or has passed it, modulo 2^32. The host
     may write words, too. */
  int (*write_words)(void* self, void* stream, uint32_t* const* words, size_t count, uint32_t value,
                     ha_cuda_error* error);
  int (*await_words)(void* self, void* stream, uint32_t* const* words, size_t count, uint32_t value,
                     ha_cuda_error* error);

  /* Blocks that wait for each other, and for other ranks' (mode K). An error, with nothing
     launched, if the blocks of this launch would not all be on the GPU at once, or the stream is
     being captured into a graph. All ranks launch their calls in one order, and nothing else on
     their GPUs that ends only when a call of another rank does. */
  int (*run_program)(void* self, void* stream, const ha_cuda_program* program,
                     ha_cuda_error* error);
  /* Calls `body` while the GPU is the calling thread's current one, for libraries that use the
     current one. */
  int (*run_on_device)(void* self, void (*body)(void*), void* argument, ha_cuda_error* error);
} ha_cuda_plugin;

typedef const ha_cuda_plugin* (*ha_cuda_plugin_entry)(void);

#ifdef __cplusplus
}
#endif
