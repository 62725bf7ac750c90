#pragma once
// How the ranks of a job seal what goes between hosts.
#include <cstdint>

#include "base/log.h"
#include "base/result.h"
#include "base/settings.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/net/sealing.h"

namespace horoacc {

/// All ranks call it, with equal `link_mac` and `encrypt`. kConfig names the ranks that cannot do
/// what these demand, or, of `auto`, those without a libcrypto if others have one. Rank 0 warns if
/// none has.
Result<Sealing> AgreeOnSealing(const Settings& settings, Bootstrap& bootstrap, const Log& log,
                               int64_t deadline_ns);

}  // namespace horoacc
