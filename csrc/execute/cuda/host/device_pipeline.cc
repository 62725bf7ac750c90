#include "execute/cuda/host/device_pipeline.h"

#include <algorithm>
#include <utility>

namespace horoacc::cuda {

DevicePipeline::DevicePipeline(std::vector<Part> parts, std::atomic<uint32_t>& polling)
    : parts_(std::move(parts)), watch_(polling) {
  uint64_t end = 0;
  for (const Part& part : parts_) {
    starts_.push_back(end);
    end += (part.bytes + kGrain - 1) / kGrain * kGrain;
  }
  starts_.push_back(end);
}

Result<uint64_t> DevicePipeline::Arrived() {
  for (; arrived_ < parts_.size(); ++arrived_) {
    const Part& part = parts_[arrived_];
    if (part.call == nullptr) continue;
    HA_ASSIGN(const uint64_t here, part.call->BytesOnHost(part.tensor));
    if (here >= part.bytes) continue;
    watch_.Set(true);
    return starts_[arrived_] + here;
  }
  watch_.Set(false);
  return starts_.back();
}

Status DevicePipeline::Leave(uint64_t end) {
  for (; left_ < parts_.size() && starts_[left_] < end; ++left_) {
    const Part& part = parts_[left_];
    const uint64_t bytes = std::min(part.bytes, end - starts_[left_]);
    if (part.call != nullptr) HA_TRY(part.call->CopyToDeviceUpTo(part.tensor, bytes));
    if (bytes < part.bytes) break;
  }
  return {};
}

}  // namespace horoacc::cuda
