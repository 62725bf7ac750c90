#include "execute/cuda/device_call.h"

#include <algorithm>
#include <utility>

namespace horoacc::cuda {

Result<std::unique_ptr<DeviceCall>> DeviceCall::Begin(Gpus::Place place, void* stream,
                                                      std::span<const DeviceTensor> tensors) {
  std::unique_ptr<DeviceCall> call(new DeviceCall(std::move(place), stream, tensors));
  HA_ASSIGN(call->ready_, call->place_.gpu->Record(stream));
  return call;
}

Result<uint64_t> DeviceCall::Fetch() {
  if (fetched()) return uint64_t{0};
  Gpu& gpu = *place_.gpu;
  HA_TRY(gpu.Wait(gpu.fetching(), ready_));
  for (const DeviceTensor& tensor : tensors_) {
    Member& member = members_.emplace_back();
    if (!tensor.fetches && !tensor.in_place) continue;
    HA_ASSIGN(member.input, Take(tensor.input_bytes));
    if (tensor.in_place) member.output = member.input;
    if (!tensor.fetches || tensor.input_bytes == 0) continue;
    HA_TRY(gpu.Copy(gpu.fetching(), member.input, tensor.input, tensor.input_bytes));
    fetched_bytes_ += tensor.input_bytes;
  }
  if (fetched_bytes_ > 0) {
    HA_ASSIGN(arrived_, gpu.Record(gpu.fetching()));
  }
  return fetched_bytes_;
}

void DeviceCall::Release() {
  // Without the event nobody knows when the copies end: then the memory stays as it is.
  const bool unknown = fetched_bytes_ > 0 && !arrived_;
  for (Member& member : std::exchange(members_, {})) {
    if (unknown) continue;
    const bool in_place = member.output == member.input;
    const bool landed = landed_ && !landed_on_gpu_;
    place_.blocks->Retire(member.input, in_place && landed ? landed_ : arrived_);
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

Result<bool> DeviceCall::HasArrived() { return place_.gpu->IsDone(arrived_); }

void DeviceCall::LandedOnGpu(GpuEvent landed) {
  landed_ = std::move(landed);
  landed_on_gpu_ = true;
}

Status DeviceCall::Land(std::span<const size_t> bytes) {
  if (landed_on_gpu_) return {};
  Gpu& gpu = *place_.gpu;
  // The caller's memory may have been somebody else's, whose work is ahead of the call.
  HA_TRY(gpu.Wait(gpu.landing(), ready_));
  bool any = false;
  for (size_t t = 0; t < members_.size(); ++t) {
    const Member& member = members_[t];
    void* const target = tensors_[t].lands ? tensors_[t].output : nullptr;
    if (!target || !member.output || bytes[t] == 0) continue;
    HA_TRY(gpu.Copy(gpu.landing(), target, member.output, bytes[t]));
    any = true;
  }
  if (!any) return {};
  HA_ASSIGN(landed_, gpu.Record(gpu.landing()));
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
