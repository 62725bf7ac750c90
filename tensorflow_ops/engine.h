#pragma once
// The engine of this process, for kernels.
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "api/engine_ref.h"
#include "api/horoacc.h"

namespace horoacc {

/// None before init() and after shutdown().
[[nodiscard]] EngineRef TheEngine();

/// The status of an op without an engine.
[[nodiscard]] absl::Status NotInitialized();

/// TensorFlow's status for an error of the core. Its payloads have kind, culprit and so on, from
/// which Python makes the core's own exception (horoacc/tensorflow/failures.py).
[[nodiscard]] absl::Status StatusOf(const ha_error& error);

/// This process's rank in the job.
[[nodiscard]] int32_t RankOf(const ha_engine* engine);
/// The ranks of a process set; none if there is no such set.
[[nodiscard]] std::vector<int32_t> RanksOf(const ha_engine* engine, int32_t process_set);

}  // namespace horoacc
