#include "execute/cuda/nccl_run.h"

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

NcclRun::NcclRun(Bucket bucket)
    : bucket_(std::move(bucket)),
      team_(bucket_.team()),
      comm_(*team_.nccl()),
      watch_(team_.polling()) {}

// The tensors stay the stream's until it is through with them. A GPU that refuses has failed
// before.
NcclRun::~NcclRun() {
  if (step_ == Step::kDone) return;
  comm_.Abort();
  static_cast<void>(bucket_.Land());
}

bool NcclRun::Advance() {
  if (step_ == Step::kDone || failed()) return false;
  Result<bool> moved = Turn();
  if (moved.ok()) return moved.value();
  status_ = std::move(moved.error());
  return false;
}

Result<bool> NcclRun::Turn() {
  if (step_ == Step::kPack) {
    HA_TRY(Begin());
    step_ = Step::kCalled;
    return true;
  }
  HA_ASSIGN(bool moved, comm_.Settled());
  if (step_ == Step::kReduced) {
    HA_ASSIGN(moved, team_.gpu().IsDone(reduced_));
  }
  watch_.Set(!moved);
  if (!moved) return false;
  if (step_ == Step::kReduced) {
    HA_TRY(Finish());
    return true;
  }
  HA_TRY(Multiply(false));
  HA_ASSIGN(reduced_, team_.gpu().Record(team_.stream()));
  step_ = Step::kReduced;
  return true;
}

Status NcclRun::Begin() {
  if (window_ == 0) HA_TRY(bucket_.AwaitTensors());
  HA_TRY(bucket_.Pack(window_));
  HA_TRY(Multiply(true));
  return comm_.Reduce(bucket_.runs(window_), team_.buffer(team_.me()), team_.stream());
}

Status NcclRun::Finish() {
  HA_TRY(bucket_.Unpack(window_));
  step_ = Step::kPack;
  if (++window_ < bucket_.windows()) return {};
  HA_TRY(bucket_.Land());
  step_ = Step::kDone;
  return {};
}

Status NcclRun::Multiply(bool before) const {
  for (const BucketRun& run : bucket_.runs(window_)) {
    const Scale scale = PartOf(run, before);
    if (scale == Scale{}) continue;
    void* const at = team_.buffer(team_.me()) + run.offset;
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
    HA_TRY(team_.gpu().Call(&ha_cuda_plugin::reduce, team_.stream(), &job));
  }
  return {};
}

}  // namespace horoacc::cuda
