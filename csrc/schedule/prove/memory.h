#pragma once
// The buffers of all ranks while a schedule is proven.
#include <cstdint>
#include <vector>

#include "schedule/prove/ordering.h"
#include "schedule/prove/prover.h"

namespace horoacc::schedule {

/// `count` cells of a buffer from `first` on, cyclic in its `size`.
struct Extent {
  uint32_t base = 0, first = 0, size = 0, count = 0;
  [[nodiscard]] uint32_t cell(uint32_t k) const { return base + (first + k) % size; }
};

class Memory {
 public:
  Memory(const Schedule& schedule, const Rules& rules, Expressions& expressions);

  /// kNone's extent is empty. A fault goes into `*wrong`.
  [[nodiscard]] Extent Find(uint32_t rank, uint32_t window, Buffer buffer, uint32_t chunk,
                            uint32_t count, const char** wrong) const;
  [[nodiscard]] Cell& operator[](uint32_t cell) { return cells_[cell]; }
  /// Whether a step may write to this chunk of a buffer.
  [[nodiscard]] bool Writable(uint32_t rank, Buffer buffer, uint32_t chunk) const;
  /// Checks that the outputs are those of the goal. Returns the fault, or an empty string.
  [[nodiscard]] std::string CheckOutputs(uint32_t window) const;

 private:
  void PutInputs(uint32_t window, Expressions& expressions);
  [[nodiscard]] uint32_t BaseOf(uint32_t rank, uint32_t window, Buffer buffer) const;

  const Facts facts_;
  const Rules rules_;
  uint32_t whole_sum_ = 0;               ///< the expression that sums must have; 0: any
  std::vector<uint32_t> scratch_;        ///< chunks, by rank
  std::vector<uint32_t> scratch_bases_;  ///< by rank and place
  std::vector<Cell> cells_;
};

}  // namespace horoacc::schedule
