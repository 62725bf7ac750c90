#pragma once
// One GPU of this process: its streams, its events, and copies between its memory and the host's.
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "execute/cuda/cuda_plugin.h"

namespace horoacc::cuda {

/// The events of a lost GPU are never done: its memory is waited for so long, then left.
inline constexpr int64_t kCloseLimit = 2 * kSecond;

/// Recorded on a stream; done once the GPU has run all that was on the stream before. Null: done.
/// It keeps its GPU open; the GPU uses it again once the last pointer to it is gone.
using GpuEvent = std::shared_ptr<void>;
/// A stream of the engine, with one user at a time; it keeps its GPU open.
using GpuStream = std::shared_ptr<void>;

/// Any thread may call any method. Only the destructor waits.
class Gpu : public std::enable_shared_from_this<Gpu> {
 public:
  [[nodiscard]] static Result<std::shared_ptr<Gpu>> Open(const ha_cuda_plugin& plugin, int device);
  /// Waits until the GPU has run all that is on its streams.
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  [[nodiscard]] int device() const { return device_; }
  /// Streams for copies to the host and to the device: neither direction waits for the other.
  [[nodiscard]] void* to_host() const { return to_host_; }
  [[nodiscard]] void* to_device() const { return to_device_; }

  [[nodiscard]] Result<GpuEvent> Record(void* stream);
  [[nodiscard]] Status Wait(void* stream, const GpuEvent& event) const;
  [[nodiscard]] Result<bool> IsDone(const GpuEvent& event) const;
  /// Between its memory and the host's.
  [[nodiscard]] Status Copy(void* stream, void* to, const void* from, size_t bytes) const;
  /// Copies from this GPU's memory, or one that it reaches, to such memory, in one launch. More
  /// than one tensor only by the driving thread: the plug-in keeps their lists without a lock.
  [[nodiscard]] Status Move(void* stream, std::span<const ha_cuda_tensor> moves) const;
  [[nodiscard]] Result<GpuStream> TakeStream();
  /// Calls a function of the plug-in that can fail.
  template <typename Function, typename... Args>
  [[nodiscard]] Status Call(Function ha_cuda_plugin::* function, Args... args) const {
    ha_cuda_error error{};
    return Outcome((plugin_.*function)(self_, args..., &error), error);
  }
  /// Calls a function of the plug-in that gives something back and cannot fail.
  void Drop(void (*ha_cuda_plugin::*function)(void*, void*), void* object) const {
    (plugin_.*function)(self_, object);
  }
  /// Whole pages. After an error, copies from and to them are slower.
  [[nodiscard]] Status Pin(void* memory, size_t bytes) const;
  void Unpin(void* memory) const;

 private:
  Gpu(const ha_cuda_plugin& plugin, int device) : plugin_(plugin), device_(device) {}
  [[nodiscard]] Result<void*> TakeEvent();
  [[nodiscard]] Status Outcome(int code, const ha_cuda_error& error) const;

  const ha_cuda_plugin& plugin_;
  const int device_;
  void* self_ = nullptr;
  void* to_host_ = nullptr;
  void* to_device_ = nullptr;
  std::mutex mutex_;
  std::vector<void*> free_events_;
  std::vector<void*> free_streams_;
};

}  // namespace horoacc::cuda
