#pragma once
/* A GPU played by the host, for tests: a plug-in with the contract of execute/cuda/cuda_plugin.h,
   and calls for tests. The host cannot touch the GPU's memory through the addresses that it gives
   out, and work that is put on a stream runs later, on a thread of that stream, in order. */
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define FAKE_CUDA_DEVICES 2
#define FAKE_CUDA_PROCESSORS 8

/* Memory of `device`. */
void* fake_cuda_allocate(int device, size_t bytes);
void fake_cuda_free(void* memory);
/* The address at which the host can access it; of other memory, the same address. */
void* fake_cuda_real(const void* memory);
/* The device whose memory it is, or -1. */
int fake_cuda_device_of(const void* memory);

/* Streams of a script, as a framework has them; NULL is the default stream of device 0. */
void* fake_cuda_stream(int device);
/* Puts a kernel on a stream: `body` runs there. */
void fake_cuda_launch(void* stream, void (*body)(void*), void* argument);
/* Waits until a stream has run all its work; no part of the plug-in may do so. */
void fake_cuda_synchronize(void* stream);
/* Events as the plug-in's. */
void* fake_cuda_event(void);
void fake_cuda_event_free(void* event);
void fake_cuda_record(void* event, void* stream);
void fake_cuda_wait(void* stream, void* event);
int fake_cuda_is_done(void* event);

/* From now on: recording on a stream that is being captured is an error. */
void fake_cuda_capture(void* stream, int on);
/* From now on packs and copies to a GPU fail, as if it had fallen off the bus. */
void fake_cuda_break(int on);
/* Bytes copied between a GPU and memory of the host that was not pinned. */
size_t fake_cuda_unpinned_bytes(void);
/* Streams that wait for an event or a word by now. */
int fake_cuda_waits(void);
/* The largest number of copies that ran at a time, on different streams, since the last call. */
int fake_cuda_most_copies(void);

/* From now on so many copies from a GPU to the host run, and the others wait; -1: all run. */
void fake_cuda_hold_copies_to_host(int after);
/* Bytes that copies have brought from the host to a GPU. */
size_t fake_cuda_bytes_to_device(void);

/* The GPU that is current on this thread, or -1. */
int fake_cuda_current(void);
/* For kernels of other libraries: one more waits on a stream, or one less. */
void fake_cuda_count_wait(int more);

#pragma GCC visibility pop

#ifdef __cplusplus
}

#include <functional>
#include <memory>
#include <utility>

/// The same with any callable.
inline void FakeCudaLaunch(void* stream, std::function<void()> body) {
  fake_cuda_launch(
      stream,
      [](void* argument) {
        const std::unique_ptr<std::function<void()>> run(
            static_cast<std::function<void()>*>(argument));
        (*run)();
      },
      new std::function<void()>(std::move(body)));
}
#endif
