#pragma once
// From this process's placement, as its launcher gave it, to the parts of an engine.
#include "api/horoacc.h"
#include "base/settings.h"
#include "runtime/engine/engine.h"
#include "transport/wake/cancellation.h"

namespace horoacc {

/// Connects to the other ranks (rendezvous or MPI), shares the host's memory, and connects the
/// hosts if there are several.
Result<EngineParts> PrepareLaunch(const Settings& settings, const ha_placement& placement,
                                  const Cancellation& cancellation);

}  // namespace horoacc
