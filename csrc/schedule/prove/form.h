#pragma once
// What can be said of a step whatever the others do.
#include "schedule/prove/value.h"
#include "schedule/schedule.h"

namespace horoacc::schedule {

/// Does the step have the operands that its operation speaks of, and peers that are other ranks?
/// What is wrong, or nullptr.
[[nodiscard]] const char* CheckForm(const Step& step, uint32_t rank, const Facts& facts);

/// May the step put `value` into chunk `chunk` of its destination? What is wrong, or nullptr.
[[nodiscard]] const char* CheckPlace(const Schedule& schedule, uint32_t rank, const Step& step,
                                     uint32_t chunk, const Value& value);

}  // namespace horoacc::schedule
