#pragma once
// Compiles a schedule, or one of the fixed algorithms, to the program of a persistent kernel.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "execute/cuda/persistent/kernel_program.h"
#include "schedule/schedule.h"

namespace horoacc::cuda {

/// The same on all ranks.
struct KernelRequest {
  DType type = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  Scale scale{};
  uint64_t count = 0;  ///< elements of the vector; ignored where there are sizes
  /// Elements, by rank: of the shards of a reduce-scatter and an all-gather; of an all-to-all the
  /// table [from · ranks + to].
  std::vector<uint64_t> sizes{};
  uint32_t channels = 1;  ///< blocks for each lane of a rank
  uint32_t depth = 2;     ///< slots of a link, at least 2: steps go from slot to slot
  uint32_t places = 2;    ///< windows of a channel that may have scratch at a time
  uint64_t chunk_bytes = uint64_t{128} << 10;  ///< of a chunk of a window, at most
};

/// 8-byte aligned; begins with a KernelHeader.
using KernelImage = std::vector<std::byte>;

/// kInvalid if the request does not fit the schedule's goal; kUnsupported if the kernels have no
/// such reduction.
[[nodiscard]] Result<KernelImage> CompileSchedule(const schedule::Schedule& schedule,
                                                  const KernelRequest& request);

/// An allreduce by kOneShot, kTwoShot or kDirect.
[[nodiscard]] Result<KernelImage> CompileFixed(KernelKind kind, uint32_t ranks,
                                               const KernelRequest& request);

[[nodiscard]] const KernelHeader& HeaderOf(const KernelImage& image);

}  // namespace horoacc::cuda
