#include "execute/cuda/nccl/nccl_run.h"

#include <utility>

namespace horoacc::cuda {
namespace {

/// Part of a reduction's factors; an average that fits into float16 must not pass a sum on its way
/// that does not.
Scale PartOf(const BucketRun& run, bool before) {
  const bool divides_first = run.type == DType::kFloat16;
  if (before) return {run.scale.pre, 1.0, divides_first ? run.scale.divisor : 1.0};
  return {1.0, run.scale.post, divides_first ? 1.0 : run.scale.divisor};
}

}  // namespace

NcclRun::NcclRun(Bucket bucket, std::vector<DeviceCall*> calls)
    : GpuRun(bucket.gpu_group(), std::move(calls)),
      bucket_(std::move(bucket)),
      comm_(*gpu_group_.nccl()),
      turn_(gpu_group_) {}

NcclRun::~NcclRun() {
  if (!complete()) comm_.Abort();
}

Result<bool> NcclRun::Go() {
  switch (step_) {
    case Step::kPack:
      HA_TRY(Pack());
      step_ = Step::kTurn;
      return true;
    case Step::kTurn:
      if (!HasCome(turn_)) return false;
      HA_TRY(comm_.Reduce(bucket_.runs(window_), gpu_group_.buffer(gpu_group_.me()),
                          gpu_group_.stream()));
      step_ = Step::kCalled;
      return true;
    case Step::kCalled:
      return Called();
    default:
      return Reduced();
  }
}

Status NcclRun::Pack() {
  if (window_ == 0) HA_TRY(AwaitTensors());
  HA_TRY(bucket_.Pack(window_));
  return Multiply(true);
}

Result<bool> NcclRun::Called() {
  HA_ASSIGN(const bool settled, comm_.Settled());
  watch_.Set(!settled);
  if (!settled) return false;
  HA_TRY(Multiply(false));
  HA_ASSIGN(reduced_, gpu_group_.gpu().Record(gpu_group_.stream()));
  step_ = Step::kReduced;
  return true;
}

// An error of NCCL's may be all that comes.
Result<bool> NcclRun::Reduced() {
  HA_TRY(comm_.Settled());
  HA_ASSIGN(const bool reduced, HasRun(reduced_));
  if (!reduced) return false;
  HA_TRY(bucket_.Unpack(window_));
  step_ = Step::kPack;
  if (++window_ < bucket_.windows()) return true;
  turn_.Pass();
  HA_TRY(Complete());
  return true;
}

Status NcclRun::Multiply(bool before) const {
  for (const BucketRun& run : bucket_.runs(window_)) {
    const Scale scale = PartOf(run, before);
    if (scale == Scale{}) continue;
    void* const at = gpu_group_.buffer(gpu_group_.me()) + run.offset;
    const void* const from = at;
    const ha_cuda_reduce job{.sources = &from,
                             .destinations = &at,
                             .source_count = 1,
                             .destination_count = 1,
                             .count = run.count,
                             .type = static_cast<int>(run.type),
                             .op = static_cast<int>(ReduceOp::kSum),
                             .pre = scale.pre,
                             .post = scale.post,
                             .divisor = scale.divisor};
    HA_TRY(gpu_group_.gpu().Call(&ha_cuda_plugin::reduce, gpu_group_.stream(), &job));
  }
  return {};
}

}  // namespace horoacc::cuda
