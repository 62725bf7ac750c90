#pragma once
// A rank's GPU memory and events that the other ranks of its GPU group open, and theirs that it has
// opened.
#include <functional>
#include <memory>
#include <vector>

#include "execute/cuda/host/gpu.h"
#include "execute/cuda/host/peer_info.h"

namespace horoacc::cuda {

/// Not thread-safe. The destructor waits for its stream, and until the others have closed this
/// rank's memory, at most for 2 seconds each. Memory that is still in use then is not freed.
class Shares {
 public:
  Shares(std::shared_ptr<Gpu> gpu, GpuGroupSegment segment, uint32_t me,
         std::vector<bool> in_this_process, std::function<bool(uint32_t)> alive);
  ~Shares();
  Shares(const Shares&) = delete;
  Shares& operator=(const Shares&) = delete;

  /// Allocates a buffer and events, and with `to_others` puts their handles into the peer info.
  [[nodiscard]] Status Offer(size_t buffer_bytes, bool to_others);
  [[nodiscard]] Status OpenMemory(uint32_t index);
  [[nodiscard]] Status OpenPackedEvent(uint32_t index);
  [[nodiscard]] Status OpenReducedEvent(uint32_t index);
  /// Pins the GPU group's words, for streams to write and wait for.
  [[nodiscard]] Status PinWords();
  /// Closes and frees everything, as the destructor does, which tries again if it could not.
  void Close();

  [[nodiscard]] void* stream() const { return stream_.get(); }
  [[nodiscard]] std::byte* memory(uint32_t index) const {
    return static_cast<std::byte*>(memory_[index]);
  }
  [[nodiscard]] void* packed_event(uint32_t index) const { return packed_[index]; }
  [[nodiscard]] void* reduced_event(uint32_t index) const { return reduced_[index]; }

 private:
  template <typename Open>
  [[nodiscard]] Status OpenPart(uint32_t index, void* pointer, const ha_cuda_handle& handle,
                                Open open, void** part) const;
  void DropEvent(void* event) const;
  void DropOpened();
  [[nodiscard]] bool StreamIsDone() const;
  [[nodiscard]] bool OthersHaveClosed() const;

  const std::shared_ptr<Gpu> gpu_;
  const GpuGroupSegment segment_;
  const uint32_t me_;
  const std::vector<bool> in_this_process_;
  const std::function<bool(uint32_t)> alive_;
  GpuStream stream_;
  // By index, with this rank's own.
  std::vector<void*> memory_;
  std::vector<void*> packed_;
  std::vector<void*> reduced_;
  bool pinned_ = false;
  bool closed_ = false;  ///< the others' memory and events
};

}  // namespace horoacc::cuda
