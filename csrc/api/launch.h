#pragma once
// From the place that a launcher gave this process to the parts that an engine needs.
#include "api/horoacc.h"
#include "base/settings.h"
#include "runtime/engine.h"
#include "transport/called_away.h"

namespace horoacc {

/// Meets the other ranks (rendezvous or MPI), shares the host's memory, and connects the control
/// links if the settings ask for a message plane.
Result<EngineParts> PrepareLaunch(const Settings& settings, const ha_placement& placement,
                                  const CalledAway& called_away);

}  // namespace horoacc
