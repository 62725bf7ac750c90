#pragma once
// Streams, events and copies of one device. Included only by the plug-in's .cu files.
#include <mutex>
#include <vector>

#include "base/result.h"

namespace horoacc::cuda {

/// Any thread may call any of it. What a call means: cuda_plugin.h.
class Streams {
 public:
  explicit Streams(int device) : device_(device) {}

  [[nodiscard]] Status Pin(void* memory, size_t bytes) const;
  void Unpin(void* memory) const;
  [[nodiscard]] Status CreateStream(void** stream);
  [[nodiscard]] Status CreateEvent(void** event) const;
  void DestroyEvent(void* event) const;
  [[nodiscard]] Status Record(void* event, void* stream) const;
  [[nodiscard]] Status Wait(void* stream, void* event) const;
  [[nodiscard]] Status IsDone(void* event, int* done) const;
  [[nodiscard]] Status Copy(void* stream, void* to, const void* from, size_t bytes) const;
  [[nodiscard]] Status Zero(void* stream, void* memory, size_t bytes) const;
  void Close();

 private:
  const int device_;
  std::mutex mutex_;
  std::vector<void*> created_;
};

}  // namespace horoacc::cuda
