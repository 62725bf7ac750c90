#pragma once
// The engine of this process, as kernels find it.
#include "absl/status/status.h"
#include "api/engine_ref.h"
#include "api/horoacc.h"

namespace horoacc {

/// None before init() and after shutdown().
[[nodiscard]] EngineRef TheEngine();

/// What an op says when there is no engine.
[[nodiscard]] absl::Status NotInitialized();

/// TensorFlow's status for an error of the core. Kind and culprit travel along as payloads, so that
/// Python can make the core's own exception of it (horoacc/tensorflow/failures.py).
[[nodiscard]] absl::Status StatusOf(const ha_error& error);

}  // namespace horoacc
