#pragma once
/* The CUDA plug-in: what libhoroacc.so knows of CUDA. It is a library of its own, so that the core
   neither needs a toolkit to be built nor a driver to be loaded. Plain C. Functions that can fail
   return 0, or another number after filling `error`. */
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HA_CUDA_PLUGIN_VERSION 5
#define HA_CUDA_PLUGIN_SYMBOL "horoacc_cuda_plugin_v5"

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

/* What a GPU is, and what it can do together with other processes. */
typedef struct ha_cuda_traits {
  unsigned char uuid[16]; /* the same in all processes, whatever number it has there */
  char bus_id[16];        /* the PCI bus's, for people */
  int shares;             /* other processes can open its memory and its events */
  int stream_words;       /* streams can write words of memory, and wait for them */
  int exclusive;          /* no other process may use it at the same time */
  int concurrent;         /* kernels of several processes run at the same time (MPS) */
  int processors;         /* each holds a block of a persistent kernel at least; 0: it runs none */
} ha_cuda_traits;

/* By which another process of the host opens memory or an event. */
typedef struct ha_cuda_handle {
  unsigned char bytes[64];
} ha_cuda_handle;

/* What the blocks of a persistent kernel look at while they wait, and leave behind: zeroed memory
   of the host that is pinned. */
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
  /* Of every rank, where this GPU finds it. A workspace is as long as the header says, and was
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
  /* Memory of the GPU. */
  int (*zero)(void* self, void* stream, void* memory, size_t bytes, ha_cuda_error* error);

  /* An error: it cannot run the kernels, but copy, all the same. */
  int (*traits)(void* self, ha_cuda_traits* traits, ha_cuda_error* error);

  /* Together with other processes. Whoever opens something closes it before its owner frees it,
     and opens nothing of its own process. */
  int (*allocate)(void* self, size_t bytes, void** memory, ha_cuda_error* error);
  void (*deallocate)(void* self, void* memory);
  int (*share_memory)(void* self, void* memory, ha_cuda_handle* handle, ha_cuda_error* error);
  int (*open_memory)(void* self, const ha_cuda_handle* handle, void** memory, ha_cuda_error* error);
  void (*close_memory)(void* self, void* memory);
  /* Events as above, which destroy_event destroys or closes. */
  int (*create_shared_event)(void* self, void** event, ha_cuda_handle* handle,
                             ha_cuda_error* error);
  int (*open_event)(void* self, const ha_cuda_handle* handle, void** event, ha_cuda_error* error);
  /* Words of the host's pinned memory. The value is written when all that is on the stream before
     has run and can be seen by everybody; what comes behind a wait begins once the word is the
     value or has passed it, counted in a circle. The host may write words, too. */
  int (*write_word)(void* self, void* stream, uint32_t* word, uint32_t value, ha_cuda_error* error);
  int (*await_word)(void* self, void* stream, uint32_t* word, uint32_t value, ha_cuda_error* error);

  /* Blocks that wait for each other, those of other ranks too (mode K). An error if those of this
     launch would not all be on the GPU at once, or the stream is being captured into a graph:
     nothing was launched then. All ranks launch their calls in one order, and nothing else on their
     GPUs that ends only when a call of another rank does. */
  int (*run_program)(void* self, void* stream, const ha_cuda_program* program,
                     ha_cuda_error* error);
  /* Calls `body` while the GPU is the calling thread's current one, for libraries that ask CUDA
     which one that is. */
  int (*run_on_device)(void* self, void (*body)(void*), void* argument, ha_cuda_error* error);
} ha_cuda_plugin;

typedef const ha_cuda_plugin* (*ha_cuda_plugin_entry)(void);

#ifdef __cplusplus
}
#endif
