#pragma once
// What can be wrong with a call before any other rank hears of it.
#include <span>
#include <string>

#include "runtime/job/calls.h"
#include "runtime/sets/process_set.h"

namespace horoacc {

/// Why rank `rank` may not make this call of a collective; "": it may.
[[nodiscard]] std::string ReasonInvalid(const ProcessSet& set, const Submission& submission,
                                        int rank);

/// Names the first element of a reduction's inputs that is infinite or NaN; "": none is.
[[nodiscard]] std::string FindNotFinite(const Request& request,
                                        std::span<const void* const> inputs);

}  // namespace horoacc
