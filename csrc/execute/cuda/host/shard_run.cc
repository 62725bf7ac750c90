#include "execute/cuda/host/shard_run.h"

#include <algorithm>
#include <utility>

namespace horoacc::cuda {
namespace {

constexpr size_t kLaunchesAtOnce = 64;  // some hundred microseconds

}  // namespace

ShardRun::ShardRun(Bucket bucket, std::vector<DeviceCall*> calls, std::unique_ptr<AdasumSums> sums)
    : GpuRun(bucket.group(), std::move(calls)),
      bucket_(std::move(bucket)),
      sums_(std::move(sums)),
      number_(bucket_.number(0)) {
  // For the second time, which follows.
  if (sums_) static_cast<void>(group_.line().Reserve(bucket_.windows()));
}

Result<bool> ShardRun::Go() {
  switch (step_) {
    case Step::kShow: {
      if (!group_.line().IsFirst(number_)) return false;
      if (!std::exchange(begun_, true)) HA_TRY(AwaitTensors());
      shown_ = number_;
      HA_TRY(bucket_.Pack(window_));
      HA_ASSIGN(ended_, group_.Record());
      step_ = Step::kShown;
      return true;
    }
    case Step::kShown: {
      HA_ASSIGN(const bool told, TellBehind(ended_, &GpuPeerInfo::packed, number_));
      if (told) step_ = Step::kWork;
      return told;
    }
    case Step::kWork: {
      if (!group_.AllHave(&GpuPeerInfo::packed, shown_)) return false;
      HA_ASSIGN(const bool all, Work());
      if (!all) return true;
      HA_ASSIGN(ended_, group_.Record());
      step_ = Step::kWorked;
      return true;
    }
    case Step::kWorked: {
      HA_ASSIGN(const bool told, TellBehind(ended_, &GpuPeerInfo::reduced, number_));
      if (told) step_ = Step::kLeave;
      return told;
    }
    case Step::kLeave:
      if (!group_.AllHave(&GpuPeerInfo::reduced, number_)) return false;
      HA_TRY(Leave());
      return true;
    case Step::kAdd:
      if (sums_->AddSome()) {
        sums_->TellAdded();
        step_ = Step::kWeigh;
      }
      return true;
    default:
      if (!sums_->AllHaveAdded()) return false;
      if (sums_->WeighNext()) {
        multiplies_ = false;
        step_ = Step::kWork;
      }
      return true;
  }
}

Result<bool> ShardRun::Work() {
  if (!sums_) {
    HA_TRY(bucket_.ReduceShard(window_, group_.stream()));
    return true;
  }
  const std::vector<BucketPart>& parts = bucket_.window(window_).parts;
  const size_t end = std::min(part_ + kLaunchesAtOnce, parts.size());
  for (; part_ < end; ++part_)
    HA_TRY(multiplies_ ? sums_->Multiply(parts[part_]) : sums_->Combine(parts[part_]));
  if (part_ < parts.size()) return false;
  part_ = 0;
  return true;
}

Status ShardRun::Leave() {
  step_ = Step::kShow;
  group_.line().CameThrough(number_++);
  const bool is_last = window_ + 1 == bucket_.windows();
  if (multiplies_) {
    if (is_last) {
      step_ = Step::kAdd;
    } else {
      ++window_;
    }
    return {};
  }
  HA_TRY(bucket_.Unpack(window_));
  if (sums_ ? window_ == 0 : is_last) return Complete();
  window_ = sums_ ? window_ - 1 : window_ + 1;
  return {};
}

}  // namespace horoacc::cuda
