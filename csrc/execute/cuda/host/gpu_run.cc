#include "execute/cuda/host/gpu_run.h"

#include <utility>

namespace horoacc::cuda {

GpuRun::GpuRun(GpuGroup& group, std::vector<DeviceCall*> calls)
    : group_(group), watch_(group.polling()), calls_(std::move(calls)) {}

// An earlier call has reported the error of a GPU that fails here.
GpuRun::~GpuRun() {
  if (!done_) static_cast<void>(HandOver());
}

bool GpuRun::Advance() {
  if (done_ || failed()) return false;
  Result<bool> moved = Go();
  if (moved.ok()) return moved.value();
  status_ = std::move(moved.error());
  return false;
}

Status GpuRun::AwaitTensors() const {
  for (const DeviceCall* call : calls_) HA_TRY(group_.gpu().Wait(group_.stream(), call->ready()));
  return {};
}

Result<bool> GpuRun::HasRun(const GpuEvent& event) {
  HA_ASSIGN(const bool run, group_.gpu().IsDone(event));
  watch_.Set(!run);
  return run;
}

Result<bool> GpuRun::TellBehind(const GpuEvent& event, std::atomic<uint64_t> GpuPeerInfo::* count,
                                uint64_t value) {
  HA_ASSIGN(const bool ended, HasRun(event));
  if (ended) group_.Tell(count, value);
  return ended;
}

Status GpuRun::HandOver() const {
  HA_ASSIGN(const GpuEvent last, group_.Record());
  for (DeviceCall* call : calls_) call->EndOnDevice(last);
  return {};
}

Status GpuRun::Complete() {
  HA_TRY(HandOver());
  done_ = true;
  return {};
}

ModeRun::ModeRun(Bucket bucket, std::vector<DeviceCall*> calls, Waits waits)
    : GpuRun(bucket.group(), std::move(calls)), bucket_(std::move(bucket)) {
  if (waits == Waits::kStreams) ticket_.emplace(group_.NextTicket());
}

Result<bool> ModeRun::Go() {
  if (!packed_) {
    if (window_ == 0) HA_TRY(AwaitTensors());
    number_ = group_.NextWindow();
    HA_TRY(bucket_.Pack(window_));
    HA_TRY(Begin());
    packed_ = true;
    return true;
  }
  if (ticket_ && !ticket_->IsCalled(group_)) {
    watch_.Set(true);  // ranks of other sets, which call it, ring nobody of this one
    return false;
  }
  HA_ASSIGN(const bool reduced, Reduce());
  if (!reduced) return false;
  watch_.Set(false);
  HA_TRY(bucket_.Unpack(window_));
  reduced_ = nullptr;
  packed_ = false;
  if (++window_ < bucket_.windows()) return true;
  if (ticket_) ticket_->Release(group_);
  HA_TRY(Complete());
  return true;
}

}  // namespace horoacc::cuda
