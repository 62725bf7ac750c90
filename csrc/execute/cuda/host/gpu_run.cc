#include "execute/cuda/host/gpu_run.h"

#include <utility>

namespace horoacc::cuda {

GpuRun::GpuRun(GpuGroup& group, std::vector<DeviceCall*> calls)
    : group_(group), calls_(std::move(calls)), watch_(group.polling()) {}

// An earlier call has reported the error of a GPU that fails here.
GpuRun::~GpuRun() {
  if (!done_) static_cast<void>(HandOver());
}

bool GpuRun::Advance() {
  if (done_ || failed()) return false;
  polls_ = false;
  Result<bool> moved = Go();
  watch_.Set(polls_ && !done_);
  if (moved.ok()) return moved.value();
  status_ = std::move(moved.error());
  return false;
}

Status GpuRun::AwaitTensors() const {
  for (const DeviceCall* call : calls_) HA_TRY(group_.gpu().Wait(group_.stream(), call->ready()));
  return {};
}

Result<bool> GpuRun::AreTensorsReady() {
  for (const DeviceCall* call : calls_) {
    HA_ASSIGN(const bool ready, HasRun(call->ready()));
    if (!ready) return false;
  }
  return true;
}

Result<bool> GpuRun::HasRun(const GpuEvent& event) {
  HA_ASSIGN(const bool run, group_.gpu().IsDone(event));
  polls_ = polls_ || !run;
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

Status ModeRun::RecordPacked(Window& window) const {
  HA_ASSIGN(window.packed, group_.Record());
  return {};
}

Status ModeRun::AwaitPacked(Window& window) const {
  if (!window.packed) return {};
  return group_.gpu().Wait(group_.reducing_stream(), std::exchange(window.packed, nullptr));
}

Result<bool> ModeRun::Go() {
  HA_ASSIGN(const bool packed, PackNext());
  HA_ASSIGN(const bool launched, LaunchNext());
  HA_ASSIGN(const bool unpacked, UnpackNext());
  return packed || launched || unpacked;
}

// The unpacking of earlier windows will be on the stream behind this packing. What makes the
// tensors ready may need it, on some rank; so the stream does not wait for them meanwhile.
Result<bool> ModeRun::PackNext() {
  if (packed_ == bucket_.windows()) return false;
  const uint64_t number = bucket_.number(packed_);
  if (!group_.line().MayCome(WindowStage::kPack, number)) return false;
  if (packed_ == 0 && group_.line().IsFirst(number)) {
    HA_TRY(AwaitTensors());
  } else if (packed_ == 0) {
    HA_ASSIGN(const bool ready, AreTensorsReady());
    if (!ready) return false;
    group_.CountOverlap();
  }
  HA_TRY(bucket_.Pack(packed_));
  Window& window = windows_.emplace_back(Window{.index = packed_, .number = number});
  HA_TRY(EndPacking(window));
  group_.line().Came(WindowStage::kPack, number);
  ++packed_;
  return true;
}

Result<bool> ModeRun::LaunchNext() {
  if (launched_ == windows_.size()) return false;
  Window& window = windows_[launched_];
  if (!group_.line().MayCome(WindowStage::kLaunch, window.number)) return false;
  if (ticket_ && !ticket_->IsCalled(group_)) {
    Poll();  // ranks of other sets, which call it, ring nobody of this one
    return false;
  }
  HA_ASSIGN(const bool launched, Launch(window));
  if (!launched) return false;
  group_.line().Came(WindowStage::kLaunch, window.number);
  ++launched_;
  return true;
}

Result<bool> ModeRun::UnpackNext() {
  if (launched_ == 0) return false;
  const Window& window = windows_.front();
  if (!group_.line().MayCome(WindowStage::kUnpack, window.number)) return false;
  HA_ASSIGN(const bool reduced, IsReduced(window));
  if (!reduced) return false;
  HA_TRY(bucket_.Unpack(window.index));
  group_.line().Came(WindowStage::kUnpack, window.number);
  const bool is_last = window.index + 1 == bucket_.windows();
  windows_.pop_front();
  --launched_;
  if (!is_last) return true;
  if (ticket_) ticket_->Release(group_);
  HA_TRY(Complete());
  return true;
}

}  // namespace horoacc::cuda
