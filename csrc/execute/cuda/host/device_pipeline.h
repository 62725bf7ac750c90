#pragma once
// A decision's tensors on a GPU as a chunk pipeline: copied to the host, reduced there and copied
// back, all at once.
#include <atomic>
#include <vector>

#include "execute/chunk_pipeline.h"
#include "execute/cuda/host/device_call.h"
#include "execute/cuda/host/watch.h"

namespace horoacc::cuda {

class DevicePipeline final : public ChunkPipeline {
 public:
  struct Part {
    DeviceCall* call = nullptr;  ///< null: the tensor is the host's
    size_t tensor = 0;           ///< of the call
    uint64_t bytes = 0;
  };
  /// `polling`: see Watch.
  DevicePipeline(std::vector<Part> parts, std::atomic<uint32_t>& polling);
  [[nodiscard]] Result<uint64_t> Arrived() override;
  [[nodiscard]] Status Leave(uint64_t end) override;

 private:
  const std::vector<Part> parts_;
  std::vector<uint64_t> starts_;  ///< by part, and the end
  size_t arrived_ = 0;            ///< parts that are on the host
  size_t left_ = 0;               ///< parts whose results are on their way back
  Watch watch_;
};

}  // namespace horoacc::cuda
