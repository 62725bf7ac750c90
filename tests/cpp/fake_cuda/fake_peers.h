#pragma once
// The functions of the fake plug-in that work with other processes.
#include <cstddef>
#include <cstdint>

#include "execute/cuda/cuda_plugin.h"

namespace horoacc::testing {

int Traits(void* self, ha_cuda_traits* traits, ha_cuda_error* error);
int Allocate(void* self, size_t bytes, void** memory, ha_cuda_error* error);
void Deallocate(void* self, void* memory);
int ShareMemory(void* self, void* memory, ha_cuda_handle* handle, ha_cuda_error* error);
int OpenMemory(void* self, const ha_cuda_handle* handle, void** memory, ha_cuda_error* error);
void CloseMemory(void* self, void* memory);
int WriteWords(void* self, void* stream, uint32_t* const* words, size_t count, uint32_t value,
               ha_cuda_error* error);
int AwaitWords(void* self, void* stream, uint32_t* const* words, size_t count, uint32_t value,
               ha_cuda_error* error);

}  // namespace horoacc::testing
