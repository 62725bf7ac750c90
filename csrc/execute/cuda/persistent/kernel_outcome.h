#pragma once
// The outcome of a persistent kernel, read from its watch once it has ended.
#include <atomic>
#include <string>

#include "base/result.h"
#include "execute/cuda/cuda_plugin.h"
#include "execute/cuda/persistent/kernel_wait.h"

namespace horoacc::cuda {

/// Ends every wait of the kernels with this watch soon. From any thread, at any time.
inline void AbortKernels(ha_cuda_watch& watch) { std::atomic_ref(watch.abort).store(1); }

/// To be called when the launches have ended: an error says whether they were aborted or past their
/// deadline, and where one of them waited. Their outputs are invalid then.
[[nodiscard]] inline Status OutcomeOf(ha_cuda_watch& watch) {
  const uint32_t abort = std::atomic_ref(watch.abort).load();
  if (abort == 0) return {};
  const uint64_t report = std::atomic_ref(watch.report).load();
  std::string where;
  if (report != 0) {
    where = "; rank " + std::to_string(RankGivenUp(report)) + " waited in lane " +
            std::to_string(LaneGivenUp(report)) + " at step " + std::to_string(StepGivenUp(report));
  }
  return MakeError(abort == 1 ? ErrorKind::kAborted : ErrorKind::kTimeout,
                   (abort == 1 ? "a persistent kernel was aborted"
                               : "a persistent kernel was past its deadline") +
                       where);
}

}  // namespace horoacc::cuda
