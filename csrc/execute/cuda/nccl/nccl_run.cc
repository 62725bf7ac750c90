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

Status NcclRun::EndPacking(Window& window) {
  HA_TRY(Multiply(window, true));
  return RecordPacked(window);
}

// NCCL may have launched its kernels only when the communicator has settled.
Result<bool> NcclRun::Launch(Window& window) {
  // Kernels that wait for those of other hosts may hold up this thread: what their ranks have to
  // know of this decision, and of those before it, goes first.
  if (!called_ && group_.HoldsNews()) {
    Poll();
    return false;
  }
  if (!called_) {
    HA_TRY(AwaitPacked(window));
    HA_TRY(comm_.Reduce(bucket_.runs(window.index), group_.buffer(group_.me()),
                        group_.reducing_stream()));
    called_ = true;
  }
  HA_ASSIGN(const bool settled, comm_.Settled());
  if (!settled) {
    Poll();
    return false;
  }
  called_ = false;
  HA_TRY(Multiply(window, false));
  HA_ASSIGN(window.reduced, group_.RecordReduced());
  return true;
}

// NCCL is asked to the end: an error of its may be all that comes.
Result<bool> NcclRun::IsReduced(const Window& window) {
  HA_TRY(comm_.Settled());
  return HasRun(window.reduced);
}

Status NcclRun::Multiply(const Window& window, bool before) const {
  void* const stream = before ? group_.stream() : group_.reducing_stream();
  for (const BucketRun& run : bucket_.runs(window.index)) {
    const Scale scale = PartOf(run, before);
    if (scale == Scale{}) continue;
    void* const at = group_.buffer(group_.me()) + run.offset;
    const void* const from = at;
    HA_TRY(
        group_.Reduce({{&from, 1}, {&at, 1}, run.count, run.type, ReduceOp::kSum, scale}, stream));
  }
  return {};
}

}  // namespace horoacc::cuda
