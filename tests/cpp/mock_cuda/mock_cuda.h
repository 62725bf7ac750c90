#pragma once
// CUDA's runtime and driver, as strict as their documentation allows, for tests of the plug-in's
// host code: csrc/execute/cuda/plugin without its kernels. What CUDA forbids, or leaves undefined,
// or does behind the caller's back (a context on a GPU that nobody named) ends the test; any call
// can be made to fail. Nothing runs before a test says so, or a call has to wait.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace horoacc::mock {

inline constexpr int kDevices = 2;

/// Calls since the process began, but those that only ask for the last error.
[[nodiscard]] int Calls();
/// From now on the call with this number fails with `code`, after it has given back what it is to
/// give back.
void FailCall(int number, cudaError_t code);
/// The name of the call that was made to fail; empty: none yet.
[[nodiscard]] std::string FailedCall();
/// From the call with this number on every call fails: the GPU has fallen off the bus.
void LoseAtCall(int number);
/// Whether that has happened.
[[nodiscard]] bool IsLost();
/// A driver that has none of the driver's calls of that name.
void HideDriverCall(const char* name);

/// What the thread's last call left behind, as another library would find it.
[[nodiscard]] cudaError_t LastError();
/// As another library on this thread.
void SetLastError(cudaError_t code);
void MakeCurrent(int device);
[[nodiscard]] int Current();
[[nodiscard]] bool HasContext(int device);
[[nodiscard]] bool IsRelaxed();

/// A stream as a framework has them, which other streams' work with the default stream holds up.
[[nodiscard]] cudaStream_t BlockingStream();
/// From now on the stream is being captured, in the strictest mode, by another thread.
void BeginCapture(cudaStream_t stream);
/// False: some call meanwhile was not allowed, and the capture is lost.
[[nodiscard]] bool EndCapture(cudaStream_t stream);

/// Runs what streams can run by now.
void RunStreams();
/// Puts work on a stream.
void Enqueue(cudaStream_t stream, std::function<void()> body);
/// The bytes behind an address of a GPU, or of pinned memory at its GPU's address.
[[nodiscard]] void* BytesAt(const void* address);

/// Memory of another process.
[[nodiscard]] cudaIpcMemHandle_t ForeignMemory(size_t bytes);

/// What the process has not given back: streams, events, memory, registrations.
[[nodiscard]] std::vector<std::string> Leaks();

}  // namespace horoacc::mock
