#pragma once
// A call whose tensors lie on a GPU: what it has of the host's memory, and how far its copies are.
#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "execute/cuda/host/gpus.h"

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
/// and back at Land; or not at all, if GPUs reduce. Either way goes chunk by chunk, and whoever
/// likes can use a chunk before the next is there. Not thread-safe: the submitter's, then the
/// driver's.
class DeviceCall {
 public:
  /// `chunk_bytes`: about so much arrives at a time.
  [[nodiscard]] static Result<std::unique_ptr<DeviceCall>> Begin(
      Gpus::Place place, void* stream, std::span<const DeviceTensor> tensors, uint64_t chunk_bytes);
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
  /// The first chunk has.
  [[nodiscard]] Result<bool> HasBegunToArrive();
  /// Bytes of tensor `t` that have, from its beginning on.
  [[nodiscard]] Result<uint64_t> Arrived(size_t t);
  /// The results are there once `landed` is done: nothing is left to land.
  void LandedOnGpu(GpuEvent landed);
  /// Sends the result of tensor `t` on its way up to there; what went before is not sent again.
  [[nodiscard]] Status LandUpTo(size_t t, uint64_t bytes);
  /// Sends the rest of all results on their way. `bytes` of each tensor's.
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
    uint64_t landed = 0;          ///< bytes of the output that are on their way back
  };
  /// Here once `event` is done: everything up to there.
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
  [[nodiscard]] GpuEvent LastArrival() const {
    return chunks_.empty() ? GpuEvent() : chunks_.back().event;
  }
  [[nodiscard]] Result<std::byte*> Take(size_t bytes);

  const Gpus::Place place_;
  void* const stream_;
  const std::vector<DeviceTensor> tensors_;
  const uint64_t chunk_bytes_;
  std::vector<Member> members_;  ///< by tensor; empty until Fetch
  GpuEvent ready_;
  std::vector<Chunk> chunks_;  ///< of all tensors, as they are copied
  size_t arrived_chunks_ = 0;  ///< as far as somebody asked
  GpuEvent landed_;
  bool all_sent_ = false;  ///< the last of `chunks_` is behind all copies
  bool landing_ = false;   ///< something is on its way back, and `landed_` does not know of it
  bool landed_on_gpu_ = false;
  std::atomic<bool> joined_{false};
};

}  // namespace horoacc::cuda
