#include "execute/cuda/host/device_call.h"

#include <algorithm>
#include <utility>

namespace horoacc::cuda {

Result<std::unique_ptr<DeviceCall>> DeviceCall::Begin(Gpus::Place place, void* stream,
                                                      std::span<const DeviceTensor> tensors,
                                                      uint64_t chunk_bytes) {
  std::unique_ptr<DeviceCall> call(new DeviceCall(std::move(place), stream, tensors, chunk_bytes));
  HA_ASSIGN(call->ready_, call->place_.gpu->Record(stream));
  return call;
}

Status DeviceCall::EndChunk(size_t tensor, uint64_t end) {
  HA_ASSIGN(GpuEvent event, place_.gpu->Record(place_.gpu->to_host()));
  chunks_.push_back({tensor, end, std::move(event)});
  return {};
}

Result<uint64_t> DeviceCall::CopyToHost() {
  if (has_host_memory()) return uint64_t{0};
  Gpu& gpu = *place_.gpu;
  HA_TRY(gpu.Wait(gpu.to_host(), ready_));
  uint64_t copied = 0;
  uint64_t in_chunk = 0;
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const DeviceTensor& tensor = tensors_[t];
    Member& member = members_.emplace_back();
    if (!tensor.reads_input && !tensor.in_place) continue;
    HA_ASSIGN(member.input, Take(tensor.input_bytes));
    if (tensor.in_place) member.output = member.input;
    if (!tensor.reads_input) continue;
    for (uint64_t at = 0; at < tensor.input_bytes;) {
      if (in_chunk == chunk_bytes_) {
        // It is behind the copies of earlier bytes and tensors.
        HA_TRY(EndChunk(t, at));
        in_chunk = 0;
      }
      const uint64_t bytes = std::min(chunk_bytes_ - in_chunk, tensor.input_bytes - at);
      const auto* const from = static_cast<const std::byte*>(tensor.input) + at;
      HA_TRY(gpu.Copy(gpu.to_host(), member.input + at, from, bytes));
      at += bytes;
      in_chunk += bytes;
    }
    copied += tensor.input_bytes;
  }
  if (in_chunk > 0) HA_TRY(EndChunk(tensors_.size(), 0));
  all_sent_ = true;
  return copied;
}

// The chunks follow each other on one stream.
Status DeviceCall::AskChunks() {
  for (; chunks_on_host_ < chunks_.size(); ++chunks_on_host_) {
    HA_ASSIGN(const bool done, place_.gpu->IsDone(chunks_[chunks_on_host_].event));
    if (!done) break;
  }
  return {};
}

Result<bool> DeviceCall::AreInputsOnHost() {
  HA_TRY(AskChunks());
  return chunks_on_host_ == chunks_.size();
}

Result<bool> DeviceCall::IsFirstChunkOnHost() {
  HA_TRY(AskChunks());
  return chunks_on_host_ > 0 || chunks_.empty();
}

Result<uint64_t> DeviceCall::BytesOnHost(size_t t) {
  HA_TRY(AskChunks());
  if (chunks_on_host_ == chunks_.size()) return tensors_[t].input_bytes;
  if (chunks_on_host_ == 0) return uint64_t{0};
  const Chunk& last = chunks_[chunks_on_host_ - 1];
  if (t == last.tensor) return last.end;
  return t < last.tensor ? tensors_[t].input_bytes : uint64_t{0};
}

void DeviceCall::Release() {
  Gpu& gpu = *place_.gpu;
  // If the call has failed in the middle, copies may be pending in either direction.
  bool unknown = !members_.empty() && !all_sent_;
  if (std::exchange(returning_, false)) {
    Status behind = gpu.Wait(gpu.to_device(), LastToHost());
    Result<GpuEvent> last = gpu.Record(gpu.to_device());
    unknown = unknown || !behind.ok() || !last.ok();
    if (last.ok()) results_ = std::move(last).value();
  }
  // The GPU may still read the inputs of a call that failed: a stream that joins waits for that.
  if (!results_) results_ = LastToHost();
  // Without an event no thread can know when the copies end: then the memory is never used again.
  for (Member& member : std::exchange(members_, {})) {
    if (unknown) continue;
    const bool in_place = member.output == member.input;
    const bool returns = results_ && !ends_on_device_;
    place_.blocks->Retire(member.input, in_place && returns ? results_ : LastToHost());
    if (!in_place) place_.blocks->Retire(member.output, results_);
  }
}

DeviceCall::~DeviceCall() {
  Release();
  if (copy_is_lost_) return;
  for (const Made& made : made_) {
    if (made.block) place_.results->Retire(made.block, last_copy_ ? last_copy_ : results_);
  }
}

Result<std::byte*> DeviceCall::MakeResult(size_t t, size_t bytes) {
  made_.resize(tensors_.size());
  std::byte* block = nullptr;
  if (bytes > 0) {
    HA_ASSIGN(block, place_.results->Take(bytes));
  }
  made_[t] = {.is_made = true, .block = block, .bytes = bytes};
  return block;
}

Status DeviceCall::CopyResult(size_t t, size_t first, size_t bytes, void* to, void* stream) {
  const Made& made = made_[t];
  if (first > made.bytes || bytes > made.bytes - first)
    return MakeError(ErrorKind::kInvalid,
                     "the result has " + std::to_string(made.bytes) + " bytes");
  if (bytes == 0) return {};
  // The copy before may have been on another stream.
  HA_TRY(place_.gpu->Wait(stream, last_copy_));
  const ha_cuda_tensor move{made.block + first, to, bytes};
  HA_TRY(place_.gpu->Move(stream, {&move, 1}));
  Result<GpuEvent> copied = place_.gpu->Record(stream);
  copy_is_lost_ = copy_is_lost_ || !copied.ok();
  HA_ASSIGN(last_copy_, std::move(copied));
  return {};
}

Result<std::byte*> DeviceCall::Take(size_t bytes) {
  std::byte* const block = place_.blocks->Take(std::max<size_t>(bytes, 1));
  if (block) return block;
  return MakeError(ErrorKind::kSystem,
                   "no memory for " + std::to_string(bytes) + " bytes of a GPU's tensor");
}

Result<std::byte*> DeviceCall::MakeOutput(size_t t, size_t bytes) {
  Member& member = members_[t];
  const bool returns = tensors_[t].writes_output && tensors_[t].output;
  if (member.output || !returns) return member.output;
  HA_ASSIGN(member.output, Take(bytes));
  return member.output;
}

void DeviceCall::EndOnDevice(GpuEvent last) {
  results_ = std::move(last);
  ends_on_device_ = true;
}

Status DeviceCall::CopyToDeviceUpTo(size_t t, uint64_t bytes) {
  Member& member = members_[t];
  void* const target = tensors_[t].writes_output ? tensors_[t].output : nullptr;
  if (!target || !member.output || bytes <= member.returned) return {};
  Gpu& gpu = *place_.gpu;
  // Earlier work on the caller's stream may still use the output's memory.
  if (!returning_) HA_TRY(gpu.Wait(gpu.to_device(), ready_));
  returning_ = true;
  HA_TRY(gpu.Copy(gpu.to_device(), static_cast<std::byte*>(target) + member.returned,
                  member.output + member.returned, bytes - member.returned));
  member.returned = bytes;
  return {};
}

Status DeviceCall::CopyToDevice(std::span<const size_t> bytes) {
  if (ends_on_device_) return {};
  for (size_t t = 0; t < members_.size(); ++t) HA_TRY(CopyToDeviceUpTo(t, bytes[t]));
  if (!returning_) return {};
  HA_ASSIGN(results_, place_.gpu->Record(place_.gpu->to_device()));
  returning_ = false;
  return {};
}

Status DeviceCall::Join(void* stream) {
  joined_.store(true, std::memory_order_relaxed);
  HA_TRY(place_.gpu->Wait(stream, results_));
  if (stream == stream_) return {};
  return place_.gpu->Wait(stream_, results_);
}

void DeviceCall::Forget() {
  // An earlier call has reported the error of a GPU that fails here.
  if (!joined_.load(std::memory_order_relaxed)) static_cast<void>(Join(stream_));
}

}  // namespace horoacc::cuda
