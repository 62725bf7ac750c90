#pragma once
// One GPU of this process: its streams, its events, and copies between its memory and the host's.
#include <memory>
#include <mutex>
#include <vector>

#include "base/result.h"
#include "execute/cuda/cuda_plugin.h"

namespace horoacc::cuda {

/// Recorded on a stream; done once all that was there before is. Null: done. It keeps its GPU open,
/// and is used again once nobody holds it.
using GpuEvent = std::shared_ptr<void>;
/// A stream of the engine, given to one user at a time; it keeps its GPU open.
using GpuStream = std::shared_ptr<void>;

/// Any thread may call any of it. Nothing waits but the destructor.
class Gpu : public std::enable_shared_from_this<Gpu> {
 public:
  [[nodiscard]] static Result<std::shared_ptr<Gpu>> Open(const ha_cuda_plugin& plugin, int device);
  /// After everything that was put on its streams.
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  [[nodiscard]] int device() const { return device_; }
  /// Streams of this engine: to the host, and from it, so that neither way waits for the other.
  [[nodiscard]] void* fetching() const { return fetching_; }
  [[nodiscard]] void* landing() const { return landing_; }

  [[nodiscard]] Result<GpuEvent> Record(void* stream);
  [[nodiscard]] Status Wait(void* stream, const GpuEvent& event) const;
  [[nodiscard]] Result<bool> IsDone(const GpuEvent& event) const;
  [[nodiscard]] Status Copy(void* stream, void* to, const void* from, size_t bytes) const;
  [[nodiscard]] Result<GpuStream> TakeStream();
  /// Any function of the plug-in that can fail.
  template <typename Function, typename... Args>
  [[nodiscard]] Status Call(Function ha_cuda_plugin::* function, Args... args) const {
    ha_cuda_error error{};
    return Outcome((plugin_.*function)(self_, args..., &error), error);
  }
  /// Those that give something back and cannot fail.
  void Drop(void (*ha_cuda_plugin::*function)(void*, void*), void* what) const {
    (plugin_.*function)(self_, what);
  }
  /// Whole pages. An error costs time, nothing else.
  [[nodiscard]] Status Pin(void* memory, size_t bytes) const;
  void Unpin(void* memory) const;

 private:
  Gpu(const ha_cuda_plugin& plugin, int device) : plugin_(plugin), device_(device) {}
  [[nodiscard]] Result<void*> TakeEvent();
  /// What a function of the plug-in said.
  [[nodiscard]] Status Outcome(int code, const ha_cuda_error& error) const;

  const ha_cuda_plugin& plugin_;
  const int device_;
  void* self_ = nullptr;
  void* fetching_ = nullptr;
  void* landing_ = nullptr;
  std::mutex mutex_;
  std::vector<void*> free_events_;
  std::vector<void*> free_streams_;
};

}  // namespace horoacc::cuda
