#pragma once
// What a rank's GPU has for the others of its GPU group, and what it has opened of theirs.
#include <functional>
#include <memory>
#include <vector>

#include "execute/cuda/host/gpu.h"
#include "execute/cuda/host/peer_info.h"

namespace horoacc::cuda {

/// Not thread-safe. In the end it waits, at most for some seconds each: for what is on its stream,
/// and for the others to let go of its memory. What is still in use then stays as it is.
class Shares {
 public:
  Shares(std::shared_ptr<Gpu> gpu, GpuGroupSegment control, uint32_t me,
         std::vector<bool> in_this_process, std::function<bool(uint32_t)> alive);
  ~Shares();
  Shares(const Shares&) = delete;
  Shares& operator=(const Shares&) = delete;

  /// Makes a buffer and events, and puts into the peer info how others open them, if they are to.
  [[nodiscard]] Status Offer(size_t buffer_bytes, bool to_others);
  [[nodiscard]] Status OpenMemory(uint32_t index);
  [[nodiscard]] Status OpenPackedEvent(uint32_t index);
  [[nodiscard]] Status OpenReducedEvent(uint32_t index);
  /// Streams can write the GPU group's words, and wait for them.
  [[nodiscard]] Status PinWords();
  /// Gives everything up: see above. What could not be the first time is tried again.
  void Close();

  [[nodiscard]] void* stream() const { return stream_.get(); }
  [[nodiscard]] std::byte* memory(uint32_t index) const {
    return static_cast<std::byte*>(memory_[index]);
  }
  [[nodiscard]] void* packed_event(uint32_t index) const { return packed_[index]; }
  [[nodiscard]] void* reduced_event(uint32_t index) const { return reduced_[index]; }

 private:
  [[nodiscard]] Status MakeEvent(void** event, ha_cuda_handle* handle, bool to_others) const;
  [[nodiscard]] Status OpenEvent(uint32_t index, void* pointer, const ha_cuda_handle& handle,
                                 void** event) const;
  void DropEvent(void* event) const;
  void DropOpened();
  [[nodiscard]] bool StreamIsDone() const;
  [[nodiscard]] bool OthersHaveClosed() const;

  const std::shared_ptr<Gpu> gpu_;
  const GpuGroupSegment control_;
  const uint32_t me_;
  const std::vector<bool> in_this_process_;
  const std::function<bool(uint32_t)> alive_;
  GpuStream stream_;
  // By index; this rank's own too.
  std::vector<void*> memory_;
  std::vector<void*> packed_;
  std::vector<void*> reduced_;
  bool pinned_ = false;
  bool let_go_ = false;  ///< of what the others own
};

}  // namespace horoacc::cuda
