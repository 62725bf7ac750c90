#pragma once
// The symbolic content of a chunk: the ranks that contributed, the factors that were applied, and
// the order in which the contributions were combined.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>

namespace horoacc::schedule {

/// Numbers expressions. A step combines its operands along the balanced binary tree over them, in
/// the order of the ranks that they came from: n of them split at the largest power of two below n.
class Expressions {
 public:
  [[nodiscard]] uint32_t Leaf(uint32_t rank) { return Number(rank, kLeaf); }
  [[nodiscard]] uint32_t Balanced(std::span<const uint32_t> operands) {
    if (operands.size() == 1) return operands.front();
    size_t left = 1;
    while (2 * left < operands.size()) left *= 2;
    return Number(Balanced(operands.first(left)), Balanced(operands.subspan(left)));
  }

 private:
  static constexpr uint32_t kLeaf = ~0u;
  uint32_t Number(uint32_t left, uint32_t right) {
    const auto next = static_cast<uint32_t>(numbers_.size() + 1);
    return numbers_.try_emplace(uint64_t{left} << 32 | right, next).first->second;
  }
  std::unordered_map<uint64_t, uint32_t> numbers_;  ///< by left and right
};

struct Value {
  uint64_t ranks = 0;  ///< contributors; 0: the chunk was never written
  uint32_t chunk = 0;  ///< the chunk of the inputs
  /// How contributions were combined (Expressions); 0 where the order does not matter.
  uint32_t expression : 30 = 0;
  bool scaled : 1 = false;    ///< each contribution has the factor before the sum
  bool finished : 1 = false;  ///< the factor after the sum was applied
  friend bool operator==(const Value&, const Value&) = default;
};

/// These functions return the fault, or nullptr.
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
