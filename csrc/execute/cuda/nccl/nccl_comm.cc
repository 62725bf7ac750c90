#include "execute/cuda/nccl/nccl_comm.h"

#include <utility>

namespace horoacc::cuda {

bool NcclReduces(DType type, ReduceOp op, const Scale& scale) {
  if (NcclTypeOf(type) < 0 || NcclOpOf(op) < 0) return false;
  // The CPU scales integers in 64 bits, which NCCL does not.
  return IsFloat(type) || scale == Scale{};
}

template <typename Body>
Status NcclComm::On(Body body) const {
  struct Job {
    Body& body;
    Status status;
  } job{body, {}};
  const auto run = [](void* argument) {
    auto* const given = static_cast<Job*>(argument);
    given->status = given->body();
  };
  HA_TRY(gpu_->Call(&ha_cuda_plugin::run_on_device, static_cast<void (*)(void*)>(run),
                    static_cast<void*>(&job)));
  return std::move(job.status);
}

Result<NcclId> NcclComm::MakeId() const {
  NcclId id{};
  HA_TRY(On([&] { return calls_.Check(calls_.unique_id(&id), nullptr); }));
  return id;
}

Status NcclComm::Begin(const NcclId& id, uint32_t ranks, uint32_t me) {
  NcclConfig config{sizeof config, 0xcafebeef, 21400, 0};  // of NCCL 2.14: it does not block
  return On([&] {
    return calls_.Check(
        calls_.init(&comm_, static_cast<int>(ranks), id, static_cast<int>(me), &config), comm_);
  });
}

Result<bool> NcclComm::Settled() const {
  if (comm_ == nullptr) return MakeError(ErrorKind::kSystem, "NCCL's communicator was given up");
  int state = NcclCalls::kSuccess;
  HA_TRY(calls_.Check(calls_.async_error(comm_, &state), comm_));
  HA_TRY(calls_.Check(state, comm_));
  return state != NcclCalls::kInProgress;
}

Status NcclComm::Reduce(std::span<const BucketRun> runs, std::byte* buffer, void* stream) {
  if (comm_ == nullptr) return MakeError(ErrorKind::kSystem, "NCCL's communicator was given up");
  return On([&]() -> Status {
    HA_TRY(calls_.Check(calls_.group_start(), comm_));
    Status outcome;
    for (const BucketRun& run : runs) {
      void* const at = buffer + run.offset;
      const int code = calls_.allreduce(at, at, run.count, NcclTypeOf(run.type), NcclOpOf(run.op),
                                        comm_, stream);
      if (outcome.ok()) outcome = calls_.Check(code, comm_);
    }
    // A group must be ended even if one of its calls has failed.
    const Status ended = calls_.Check(calls_.group_end(), comm_);
    return outcome.ok() ? ended : outcome;
  });
}

// The error of a lost GPU changes nothing here.
void NcclComm::Abort() {
  if (comm_ == nullptr) return;
  static_cast<void>(
      On([&] { return calls_.Check(calls_.abort(std::exchange(comm_, nullptr)), nullptr); }));
}

}  // namespace horoacc::cuda
