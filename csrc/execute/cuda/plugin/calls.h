#pragma once
// Calls of the contract (cuda_plugin.h says what each does) that work on the calling thread's
// current device and need nothing else of it. Included only by the plug-in's .cu files.
#include <span>

#include "base/result.h"
#include "execute/cuda/cuda_plugin.h"

namespace horoacc::cuda {

// streams.cu
[[nodiscard]] Status CreateEvent(void** event);
void DestroyEvent(void* event);
[[nodiscard]] Status Record(void* event, void* stream);
[[nodiscard]] Status Wait(void* stream, void* event);
[[nodiscard]] Status IsDone(void* event, int* done);
[[nodiscard]] Status Copy(void* stream, void* to, const void* from, size_t bytes);
[[nodiscard]] Status Zero(void* stream, void* memory, size_t bytes);

// peers.cu
[[nodiscard]] Status Traits(ha_cuda_traits* traits);
[[nodiscard]] Status Allocate(size_t bytes, void** memory);
void Deallocate(void* memory);
[[nodiscard]] Status ShareMemory(void* memory, ha_cuda_handle* handle);
[[nodiscard]] Status OpenMemory(const ha_cuda_handle* handle, void** memory);
void CloseMemory(void* memory);
// `words`: at the GPU's addresses.
[[nodiscard]] Status WriteWords(void* stream, std::span<void* const> words, uint32_t value);
[[nodiscard]] Status AwaitWords(void* stream, std::span<void* const> words, uint32_t value);

}  // namespace horoacc::cuda
