#include "execute/cuda/nccl/nccl_run.h"

#include <utility>

namespace horoacc::cuda {
namespace {

/// The part of a reduction's factors that belongs before or behind NCCL's sum. Averages of float16
/// are divided before, since the sum of all ranks may not fit into float16.
Scale PartOf(const BucketRun& run, bool before) {
  const bool divides_first = run.type == DType::kFloat16;
  if (before) return {run.scale.pre, 1.0, divides_first ? run.scale.divisor : 1.0};
  return {1.0, run.scale.post, divides_first ? 1.0 : run.scale.divisor};
}

}  // namespace

NcclRun::NcclRun(Bucket bucket, std::vector<DeviceCall*> calls)
    : ModeRun(std::move(bucket), std::move(calls), Waits::kStreams), comm_(*group_.nccl()) {}

NcclRun::~NcclRun() {
  if (!complete()) comm_.Abort();
}

Status NcclRun::Begin() {
  called_ = false;
  return Multiply(true);
}

// NCCL may have launched its kernels only when the communicator has settled. It is asked to the
// end: an error of NCCL's may be all that comes.
Result<bool> NcclRun::Reduce() {
  // Kernels that wait for those of other hosts may hold up this thread: what their ranks have to
  // know of this decision, and of those before it, goes first.
  if (!called_ && group_.HoldsNews()) {
    watch_.Set(true);
    return false;
  }
  if (!called_) {
    HA_TRY(comm_.Reduce(bucket_.runs(window_), group_.buffer(group_.me()), group_.stream()));
    called_ = true;
  }
  HA_ASSIGN(const bool settled, comm_.Settled());
  if (!reduced_) {
    watch_.Set(!settled);
    if (!settled) return false;
    HA_TRY(Multiply(false));
    HA_ASSIGN(reduced_, group_.Record());
  }
  return HasRun(reduced_);
}

Status NcclRun::Multiply(bool before) const {
  for (const BucketRun& run : bucket_.runs(window_)) {
    const Scale scale = PartOf(run, before);
    if (scale == Scale{}) continue;
    void* const at = group_.buffer(group_.me()) + run.offset;
    const void* const from = at;
    HA_TRY(group_.Reduce({{&from, 1}, {&at, 1}, run.count, run.type, ReduceOp::kSum, scale}));
  }
  return {};
}

}  // namespace horoacc::cuda
