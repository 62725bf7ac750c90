#pragma once
// A call whose tensors lie on a GPU: its memory on the host, and its pending copies.
#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "execute/cuda/device/gpus.h"

namespace horoacc::cuda {

/// One tensor, as the caller gave it.
struct DeviceTensor {
  const void* input = nullptr;
  void* output = nullptr;  ///< null: there is none, or the engine allocates it
  size_t input_bytes = 0;
  bool reads_input = true;    ///< the call reads the input of this rank
  bool in_place = false;      ///< in the host's memory the result takes the place of the input
  bool writes_output = true;  ///< the result is to be copied to `output`
};

/// Copies inputs to the host when it is made or later, behind the earlier work of the caller's
/// stream, and results back to the device; or copies nothing, if GPUs reduce. Either direction goes
/// in chunks, and a chunk can be used before the next one is there. Not thread-safe: first the
/// submitting thread has it, then the driving thread.
class DeviceCall {
 public:
  /// `chunk_bytes`: the size of chunks on their way to the host.
  [[nodiscard]] static Result<std::unique_ptr<DeviceCall>> Begin(
      Gpus::Place place, void* stream, std::span<const DeviceTensor> tensors, uint64_t chunk_bytes);
  /// Enqueues the copies of the inputs to the host, unless that was done: how many bytes.
  [[nodiscard]] Result<uint64_t> CopyToHost();
  ~DeviceCall();
  DeviceCall(const DeviceCall&) = delete;
  DeviceCall& operator=(const DeviceCall&) = delete;

  /// Tensor `t` in the host's memory. Null if it is not copied there.
  [[nodiscard]] std::byte* input(size_t t) const {
    return has_host_memory() ? members_[t].input : nullptr;
  }
  /// The same if the result takes its place; else null until MakeOutput.
  [[nodiscard]] std::byte* output(size_t t) const {
    return has_host_memory() ? members_[t].output : nullptr;
  }
  /// Allocates host memory for a result of known size. Null if the caller gave no output.
  [[nodiscard]] Result<std::byte*> MakeOutput(size_t t, size_t bytes);

  [[nodiscard]] const std::shared_ptr<Gpu>& gpu() const { return place_.gpu; }
  [[nodiscard]] const std::shared_ptr<PinnedBlocks>& blocks() const { return place_.blocks; }
  /// The caller's memory on the GPU: tensor `t`, and its result.
  [[nodiscard]] const void* source(size_t t) const { return tensors_[t].input; }
  [[nodiscard]] void* target(size_t t) const { return tensors_[t].output; }
  /// Allocates a result of known size on the GPU, for a caller that gave no memory.
  [[nodiscard]] Result<std::byte*> MakeResult(size_t t, size_t bytes);
  /// Whether the result of tensor `t` lies in such memory, which this call keeps.
  [[nodiscard]] bool has_result(size_t t) const { return t < made_.size() && made_[t].is_made; }
  /// Enqueues the copy of a part of that result on a stream that has joined. By one thread at a
  /// time, once the call is complete.
  [[nodiscard]] Status CopyResult(size_t t, size_t first, size_t bytes, void* to, void* stream);
  /// Done when the caller's stream has come to the call.
  [[nodiscard]] const GpuEvent& ready() const { return ready_; }
  /// CopyToHost was called.
  [[nodiscard]] bool has_host_memory() const { return !members_.empty() || tensors_.empty(); }
  [[nodiscard]] Result<bool> AreInputsOnHost();
  [[nodiscard]] Result<bool> IsFirstChunkOnHost();
  /// Bytes of tensor `t` that are there, from its beginning on.
  [[nodiscard]] Result<uint64_t> BytesOnHost(size_t t);
  /// GPUs have reduced: the results are on the device once `last` is done.
  void EndOnDevice(GpuEvent last);
  /// Enqueues the copy of tensor `t`'s result to the device, from where the last one ended.
  [[nodiscard]] Status CopyToDeviceUpTo(size_t t, uint64_t bytes);
  /// Enqueues the copies of the rest of all results, of `bytes` each.
  [[nodiscard]] Status CopyToDevice(std::span<const size_t> bytes);
  /// Makes later work on `stream` wait for the results; and on the stream of the submission, whose
  /// allocator may give the caller's memory away.
  [[nodiscard]] Status Join(void* stream);
  /// No stream will join any more: if none has, the stream of the submission does.
  void Forget();
  /// Gives up the host's memory, which is used again once no copy is pending.
  void Release();

 private:
  /// In the host's memory.
  struct Member {
    std::byte* input = nullptr;
    std::byte* output = nullptr;  ///< may be `input`
    uint64_t returned = 0;        ///< bytes of the output whose copies are enqueued
  };
  /// A result in the engine's memory on the GPU. An empty one has no block.
  struct Made {
    bool is_made = false;
    std::byte* block = nullptr;
    size_t bytes = 0;
  };
  /// The inputs are on the host up to `end` of `tensor` once `event` is done.
  struct Chunk {
    size_t tensor = 0;
    uint64_t end = 0;  ///< bytes of the tensor
    GpuEvent event;
  };
  DeviceCall(Gpus::Place place, void* stream, std::span<const DeviceTensor> tensors,
             uint64_t chunk_bytes)
      : place_(std::move(place)),
        stream_(stream),
        tensors_(tensors.begin(), tensors.end()),
        chunk_bytes_(chunk_bytes) {}
  [[nodiscard]] Status EndChunk(size_t tensor, uint64_t end);
  [[nodiscard]] Status AskChunks();
  [[nodiscard]] GpuEvent LastToHost() const {
    return chunks_.empty() ? GpuEvent() : chunks_.back().event;
  }
  [[nodiscard]] Result<std::byte*> Take(size_t bytes);

  const Gpus::Place place_;
  void* const stream_;
  const std::vector<DeviceTensor> tensors_;
  const uint64_t chunk_bytes_;
  std::vector<Member> members_;  ///< by tensor; empty until CopyToHost
  GpuEvent ready_;
  std::vector<Made> made_;     ///< by tensor
  GpuEvent last_copy_;         ///< of these; done when all are
  bool copy_is_lost_ = false;  ///< one is pending, and no event tells when it ends
  std::vector<Chunk> chunks_;  ///< of all tensors, in the order of their copies
  size_t chunks_on_host_ = 0;  ///< as far as AskChunks has seen
  GpuEvent results_;           ///< done when the results are on the device
  bool all_sent_ = false;      ///< all copies to the host are enqueued
  bool returning_ = false;     ///< copies to the device are enqueued behind `results_`
  bool ends_on_device_ = false;
  std::atomic<bool> joined_{false};
};

}  // namespace horoacc::cuda
