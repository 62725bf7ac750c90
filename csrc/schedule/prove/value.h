#pragma once
// What a chunk holds, symbolically: whose contributions, and which factors were applied to them.
#include <cstdint>
#include <string>

namespace horoacc::schedule {

struct Value {
  uint64_t ranks = 0;  ///< whose contributions it holds; 0: nothing was ever written here
  uint32_t chunk = 0;  ///< which chunk of the inputs it is made of
  /// How they were combined (expression.h); 0 where the order does not matter.
  uint32_t expression : 30 = 0;
  bool scaled : 1 = false;    ///< the factor before the sum was applied to each of them
  bool finished : 1 = false;  ///< the factor after the sum was applied
  friend bool operator==(const Value&, const Value&) = default;
};

/// Each returns what is wrong, or nullptr.
[[nodiscard]] inline const char* Prescale(Value& value) {
  if ((value.ranks & (value.ranks - 1)) != 0) return "scales a sum as if it were an input";
  if (value.scaled) return "scales an input twice";
  value.scaled = true;
  return nullptr;
}

[[nodiscard]] inline const char* Postscale(Value& value, uint64_t everybody) {
  if (value.ranks != everybody) return "scales a sum that is not complete";
  if (value.finished) return "scales a sum twice";
  value.finished = true;
  return nullptr;
}

[[nodiscard]] inline const char* Add(Value& sum, const Value& part) {
  if (sum.chunk != part.chunk) return "adds different chunks";
  if ((sum.ranks & part.ranks) != 0) return "adds a contribution that is in the sum";
  if (!sum.scaled || !part.scaled) return "adds an unscaled input";
  if (sum.finished || part.finished) return "adds to a finished sum";
  sum.ranks |= part.ranks;
  return nullptr;
}

}  // namespace horoacc::schedule
