#pragma once
// A rank's GPU memory that the other ranks of its GPU group open, and theirs that it has opened.
#include <functional>
#include <memory>
#include <vector>

#include "execute/cuda/device/gpu.h"
#include "execute/cuda/host/peer_info.h"

namespace horoacc::cuda {

/// Not thread-safe. The destructor waits for its streams, and until the others have closed this
/// rank's memory, at most for 2 seconds each. Memory that is still in use then is not freed.
class Shares {
 public:
  Shares(std::shared_ptr<Gpu> gpu, GpuGroupSegment segment, uint32_t me,
         std::vector<bool> in_this_process, std::function<bool(uint32_t)> alive);
  ~Shares();
  Shares(const Shares&) = delete;
  Shares& operator=(const Shares&) = delete;

  /// Allocates a buffer and events, and with `to_others` puts their handles into the peer info.
  /// This and the calls below do only what an earlier one has not done.
  [[nodiscard]] Status Offer(size_t buffer_bytes, bool to_others);
  [[nodiscard]] Status OpenMemory(uint32_t index);
  /// Pins the GPU group's words, for streams to write and wait for.
  [[nodiscard]] Status PinWords();
  /// Closes and frees everything, as the destructor does, which tries again if it could not.
  void Close();

  [[nodiscard]] void* stream() const { return stream_.get(); }
  /// For reductions, which may wait for other ranks.
  [[nodiscard]] void* reducing_stream() const { return reducing_stream_.get(); }
  [[nodiscard]] std::byte* memory(uint32_t index) const {
    return static_cast<std::byte*>(memory_[index]);
  }

 private:
  void DropOpened();
  [[nodiscard]] bool IsDone(const GpuStream& stream) const;
  [[nodiscard]] bool OthersHaveClosed() const;

  const std::shared_ptr<Gpu> gpu_;
  const GpuGroupSegment segment_;
  const uint32_t me_;
  const std::vector<bool> in_this_process_;
  const std::function<bool(uint32_t)> alive_;
  GpuStream stream_, reducing_stream_;
  std::vector<void*> memory_;  ///< by index, with this rank's own
  bool pinned_ = false;
  bool closed_ = false;  ///< the others' memory
};

}  // namespace horoacc::cuda
