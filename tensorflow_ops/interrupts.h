#pragma once
// Signals that come while an eager call waits, and the calls that their handlers leave behind.
#include <vector>

#include "api/engine_ref.h"
#include "api/horoacc.h"
#include "tensorflow/core/framework/tensor.h"

namespace horoacc {

/// Lets Python run the handlers of pending signals. True if one raised; ha_tensorflow_raise raises
/// its exception. Takes the GIL; only Python's main thread runs handlers.
[[nodiscard]] bool HandlersRaise();

/// Keeps the memory of an interrupted call until it has ended: other ranks still access it.
void LeaveInFlight(EngineRef engine, ha_handle handle, std::vector<tensorflow::Tensor> memory);

/// Releases such calls that have ended.
void ReleaseLeft();

}  // namespace horoacc
