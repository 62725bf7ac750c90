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
  HA_ASSIGN(GpuEvent event, place_.gpu->Record(place_.gpu->fetching()));
  chunks_.push_back({tensor, end, std::move(event)});
  return {};
}

Result<uint64_t> DeviceCall::Fetch() {
  if (fetched()) return uint64_t{0};
  Gpu& gpu = *place_.gpu;
  HA_TRY(gpu.Wait(gpu.fetching(), ready_));
  uint64_t fetched_bytes = 0;
  uint64_t in_chunk = 0;
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const DeviceTensor& tensor = tensors_[t];
    Member& member = members_.emplace_back();
    if (!tensor.fetches && !tensor.in_place) continue;
    HA_ASSIGN(member.input, Take(tensor.input_bytes));
    if (tensor.in_place) member.output = member.input;
    if (!tensor.fetches) continue;
    for (uint64_t at = 0; at < tensor.input_bytes;) {
      if (in_chunk == chunk_bytes_) {
        // Behind what went before: of this tensor, or all of the others.
        HA_TRY(EndChunk(t, at));
        in_chunk = 0;
      }
      const uint64_t bytes = std::min(chunk_bytes_ - in_chunk, tensor.input_bytes - at);
      const auto* const from = static_cast<const std::byte*>(tensor.input) + at;
      HA_TRY(gpu.Copy(gpu.fetching(), member.input + at, from, bytes));
      at += bytes;
      in_chunk += bytes;
    }
    fetched_bytes += tensor.input_bytes;
  }
  if (in_chunk > 0) HA_TRY(EndChunk(tensors_.size(), 0));
  all_sent_ = true;
  return fetched_bytes;
}

// The chunks follow each other on one stream.
Status DeviceCall::AskChunks() {
  for (; arrived_chunks_ < chunks_.size(); ++arrived_chunks_) {
    HA_ASSIGN(const bool done, place_.gpu->IsDone(chunks_[arrived_chunks_].event));
    if (!done) break;
  }
  return {};
}

Result<bool> DeviceCall::HasArrived() {
  HA_TRY(AskChunks());
  return arrived_chunks_ == chunks_.size();
}

Result<bool> DeviceCall::HasBegunToArrive() {
  HA_TRY(AskChunks());
  return arrived_chunks_ > 0 || chunks_.empty();
}

Result<uint64_t> DeviceCall::Arrived(size_t t) {
  HA_TRY(AskChunks());
  if (arrived_chunks_ == chunks_.size()) return tensors_[t].input_bytes;
  if (arrived_chunks_ == 0) return uint64_t{0};
  const Chunk& last = chunks_[arrived_chunks_ - 1];
  if (t == last.tensor) return last.end;
  return t < last.tensor ? tensors_[t].input_bytes : uint64_t{0};
}

void DeviceCall::Release() {
  Gpu& gpu = *place_.gpu;
  // Of a call that failed in the middle some copies may be on their way, either way.
  bool unknown = !members_.empty() && !all_sent_;
  if (std::exchange(landing_, false)) {
    Status behind = gpu.Wait(gpu.landing(), LastArrival());
    Result<GpuEvent> landed = gpu.Record(gpu.landing());
    unknown = unknown || !behind.ok() || !landed.ok();
    if (landed.ok()) landed_ = std::move(landed).value();
  }
  // Of a call that failed the inputs may still be read: whoever joins waits for that.
  if (!landed_) landed_ = LastArrival();
  // Without an event nobody knows when the copies end: then the memory stays as it is.
  for (Member& member : std::exchange(members_, {})) {
    if (unknown) continue;
    const bool in_place = member.output == member.input;
    const bool landed = landed_ && !landed_on_gpu_;
    place_.blocks->Retire(member.input, in_place && landed ? landed_ : LastArrival());
    if (!in_place) place_.blocks->Retire(member.output, landed_);
  }
}

Result<std::byte*> DeviceCall::Take(size_t bytes) {
  std::byte* const block = place_.blocks->Take(std::max<size_t>(bytes, 1));
  if (block) return block;
  return MakeError(ErrorKind::kSystem,
                   "no memory for " + std::to_string(bytes) + " bytes of a GPU's tensor");
}

Result<std::byte*> DeviceCall::MakeOutput(size_t t, size_t bytes) {
  Member& member = members_[t];
  const bool lands = tensors_[t].lands && tensors_[t].output;
  if (member.output || !lands) return member.output;
  HA_ASSIGN(member.output, Take(bytes));
  return member.output;
}

void DeviceCall::LandedOnGpu(GpuEvent landed) {
  landed_ = std::move(landed);
  landed_on_gpu_ = true;
}

Status DeviceCall::LandUpTo(size_t t, uint64_t bytes) {
  Member& member = members_[t];
  void* const target = tensors_[t].lands ? tensors_[t].output : nullptr;
  if (!target || !member.output || bytes <= member.landed) return {};
  Gpu& gpu = *place_.gpu;
  // The caller's memory may have been somebody else's, whose work is ahead of the call.
  if (!landing_) HA_TRY(gpu.Wait(gpu.landing(), ready_));
  landing_ = true;
  HA_TRY(gpu.Copy(gpu.landing(), static_cast<std::byte*>(target) + member.landed,
                  member.output + member.landed, bytes - member.landed));
  member.landed = bytes;
  return {};
}

Status DeviceCall::Land(std::span<const size_t> bytes) {
  if (landed_on_gpu_) return {};
  for (size_t t = 0; t < members_.size(); ++t) HA_TRY(LandUpTo(t, bytes[t]));
  if (!landing_) return {};
  HA_ASSIGN(landed_, place_.gpu->Record(place_.gpu->landing()));
  landing_ = false;
  return {};
}

Status DeviceCall::Join(void* stream) {
  joined_.store(true, std::memory_order_relaxed);
  HA_TRY(place_.gpu->Wait(stream, landed_));
  if (stream == stream_) return {};
  return place_.gpu->Wait(stream_, landed_);
}

void DeviceCall::Forget() {
  // A GPU that refuses has told of it in a call that somebody waits for.
  if (!joined_.load(std::memory_order_relaxed)) static_cast<void>(Join(stream_));
}

}  // namespace horoacc::cuda
