#pragma once
// Looks for infinities and NaNs.
#include <cstddef>
#include <optional>

#include "base/dtype.h"

namespace horoacc {

/// The index of the first of `count` elements that is infinite or not a number; none of a type that
/// has no such values.
[[nodiscard]] std::optional<size_t> FirstNotFinite(const void* data, DType type, size_t count);

}  // namespace horoacc
