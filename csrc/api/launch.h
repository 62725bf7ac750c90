#pragma once
// From the place that a launcher gave this process to the parts that an engine needs.
#include "api/horoacc.h"
#include "base/settings.h"
#include "runtime/engine/engine.h"
#include "transport/wake/cancellation.h"

namespace horoacc {

/// Meets the other ranks (rendezvous or MPI), shares the host's memory, and connects the control
/// links if the settings ask for a message controller.
Result<EngineParts> PrepareLaunch(const Settings& settings, const ha_placement& placement,
                                  const Cancellation& cancellation);

}  // namespace horoacc
