#pragma once
// A call whose tensors lie on a GPU: what it has of the host's memory, and how far its copies are.
#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "execute/cuda/gpus.h"

namespace horoacc::cuda {

/// One tensor, as the caller gave it.
struct DeviceTensor {
  const void* input = nullptr;
  void* output = nullptr;  ///< null: there is none, or the engine allocates it
  size_t input_bytes = 0;
  bool fetches = true;  ///< the call reads the input of this rank
  /// The result takes the place of the input in the host's memory.
  bool in_place = false;
  bool lands = true;  ///< the result is to be copied to `output`
};

/// Copies to the host when it is made or later, behind what the caller's stream had to do before,
/// and back at Land; or not at all, if GPUs reduce. Not thread-safe: the submitter's, then the
/// driver's.
class DeviceCall {
 public:
  [[nodiscard]] static Result<std::unique_ptr<DeviceCall>> Begin(
      Gpus::Place place, void* stream, std::span<const DeviceTensor> tensors);
  /// Sends the inputs on their way to the host, if that has not been done: how many bytes.
  [[nodiscard]] Result<uint64_t> Fetch();
  ~DeviceCall() { Release(); }
  DeviceCall(const DeviceCall&) = delete;
  DeviceCall& operator=(const DeviceCall&) = delete;

  /// In the host's memory: where tensor `t` arrives. Null if nothing does.
  [[nodiscard]] std::byte* input(size_t t) const { return fetched() ? members_[t].input : nullptr; }
  /// The same if the result takes its place; else null until MakeOutput.
  [[nodiscard]] std::byte* output(size_t t) const {
    return fetched() ? members_[t].output : nullptr;
  }
  /// Makes room for the result, once its size is known. Null if the caller gave no output.
  [[nodiscard]] Result<std::byte*> MakeOutput(size_t t, size_t bytes);

  [[nodiscard]] const std::shared_ptr<Gpu>& gpu() const { return place_.gpu; }
  [[nodiscard]] const std::shared_ptr<PinnedBlocks>& blocks() const { return place_.blocks; }
  /// On the GPU: where the caller has tensor `t`, and where its result is to be.
  [[nodiscard]] const void* source(size_t t) const { return tensors_[t].input; }
  [[nodiscard]] void* target(size_t t) const { return tensors_[t].output; }
  /// Done when the caller's stream has come to the call.
  [[nodiscard]] const GpuEvent& ready() const { return ready_; }
  [[nodiscard]] bool fetched() const { return !members_.empty() || tensors_.empty(); }
  [[nodiscard]] Result<bool> HasArrived();
  /// The results are there once `landed` is done: nothing is left to land.
  void LandedOnGpu(GpuEvent landed);
  /// Sends the results on their way. `bytes` of each tensor's.
  [[nodiscard]] Status Land(std::span<const size_t> bytes);
  /// What comes on `stream` from now on finds the results; so does what comes on the stream of the
  /// submission, where the caller's memory may be given to somebody else.
  [[nodiscard]] Status Join(void* stream);
  /// Nobody will join any more: if nobody has, the stream of the submission does.
  void Forget();
  /// The engine needs the host's memory no more: it is used again when no copy is on its way.
  void Release();

 private:
  /// In the host's memory.
  struct Member {
    std::byte* input = nullptr;
    std::byte* output = nullptr;  ///< may be `input`
  };
  DeviceCall(Gpus::Place place, void* stream, std::span<const DeviceTensor> tensors)
      : place_(std::move(place)), stream_(stream), tensors_(tensors.begin(), tensors.end()) {}
  [[nodiscard]] Result<std::byte*> Take(size_t bytes);

  const Gpus::Place place_;
  void* const stream_;
  const std::vector<DeviceTensor> tensors_;
  std::vector<Member> members_;  ///< by tensor; empty until Fetch
  GpuEvent ready_;
  GpuEvent arrived_;
  GpuEvent landed_;
  uint64_t fetched_bytes_ = 0;
  bool landed_on_gpu_ = false;
  std::atomic<bool> joined_{false};
};

}  // namespace horoacc::cuda
