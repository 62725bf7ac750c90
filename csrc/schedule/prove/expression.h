#pragma once
// In which order the contributions of a sum were combined: expressions, each with one number.
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>

namespace horoacc::schedule {

/// What a step combines at a time is combined along the balanced binary tree over its operands, in
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

}  // namespace horoacc::schedule
