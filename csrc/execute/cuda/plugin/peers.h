#pragma once
// What one device does together with other processes: memory and events that they open, words that
// streams write and wait for. Included only by the plug-in's .cu files.
#include "base/result.h"
#include "execute/cuda/cuda_plugin.h"

namespace horoacc::cuda {

/// Any thread may call any of it. What a call means: cuda_plugin.h.
class Peers {
 public:
  explicit Peers(int device) : device_(device) {}

  /// Finds what the driver has for words.
  [[nodiscard]] Status Open();
  [[nodiscard]] Status Traits(ha_cuda_traits* traits) const;
  [[nodiscard]] Status Allocate(size_t bytes, void** memory) const;
  void Deallocate(void* memory) const;
  [[nodiscard]] Status ShareMemory(void* memory, ha_cuda_handle* handle) const;
  [[nodiscard]] Status OpenMemory(const ha_cuda_handle& handle, void** memory) const;
  void CloseMemory(void* memory) const;
  [[nodiscard]] Status CreateSharedEvent(void** event, ha_cuda_handle* handle) const;
  [[nodiscard]] Status OpenEvent(const ha_cuda_handle& handle, void** event) const;
  [[nodiscard]] Status WriteWord(void* stream, uint32_t* word, uint32_t value) const;
  [[nodiscard]] Status AwaitWord(void* stream, uint32_t* word, uint32_t value) const;

 private:
  const int device_;
  void* write_word_ = nullptr;  ///< null: this driver has none
  void* await_word_ = nullptr;
};

}  // namespace horoacc::cuda
