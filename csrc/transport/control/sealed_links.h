#pragma once
// Control links whose messages have tags, over links that have none, as MPI's.
#include <cstdint>
#include <memory>
#include <string>

#include "transport/control/control_links.h"

namespace horoacc {

/// A tag of HMAC-SHA256 follows each message; the keys are of the job's secret, its epoch, the
/// sender and the receiver (KeyOfRanks). A peer of which a message does not open is lost.
[[nodiscard]] std::unique_ptr<ControlLinks> WithSeals(std::unique_ptr<ControlLinks> links, int rank,
                                                      std::string secret, uint64_t epoch);

}  // namespace horoacc
