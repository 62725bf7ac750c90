#pragma once
// Signals that come while an eager call waits, and the calls that their handlers leave behind.
#include <vector>

#include "api/engine_ref.h"
#include "api/horoacc.h"
#include "tensorflow/core/framework/tensor.h"

namespace horoacc {

/// Lets Python run the handlers of signals that have come. True if one raised: what it raised is
/// kept for ha_tensorflow_raise. Takes the GIL; only Python's main thread runs handlers.
[[nodiscard]] bool HandlersRaise();

/// Keeps the memory of a call that nobody waits for any more, until the call has ended: the other
/// ranks still read and write it.
void LeaveInFlight(EngineRef engine, ha_handle handle, std::vector<tensorflow::Tensor> memory);

/// Releases those that have ended since.
void ReleaseLeft();

}  // namespace horoacc
