#pragma once
// Whether the requests of a set's ranks for one call fit together. Both controllers ask here.
#include <span>
#include <string>
#include <vector>

#include "negotiate/request.h"

namespace horoacc {

/// Why a call cannot run; kOk: it can. The first of: a rank's own error, a request that does not
/// fit the lowest rank's, a collective that is impossible while ranks have joined, splits that do
/// not fit. `ranks`: global, by member. `requests`: by member; null for a member that has joined
/// and did not submit the call; at least one is not null. `name`: of the call, for the text.
[[nodiscard]] Error FindDisagreement(const std::string& name, std::span<const int> ranks,
                                     std::span<const Request* const> requests);

/// Says, with both values, what differs between the requests of two ranks for `name`; empty if
/// they fit together.
[[nodiscard]] std::string DescribeMismatch(const std::string& name, int rank_a, const Request& a,
                                           int rank_b, const Request& b);

[[nodiscard]] std::string ShapeText(const Dims& shape);
/// "0, 3, 4".
[[nodiscard]] std::string ListText(std::span<const int> ranks);

}  // namespace horoacc
