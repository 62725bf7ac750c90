#pragma once
// All-gather and reduce-scatter in ceil(log2 P) rounds for any P (Bruck, Ho, Kipnis, Upfal and
// Weathersby, "Efficient algorithms for all-to-all communications in multiport message-passing
// systems", 1997): the chunks that a rank holds double, or halve, with every round.
#include "schedule/generate/stage.h"

namespace horoacc::schedule {

/// In round i rank r receives the chunks of rank r + 2^i. S(P-1)/P bytes a rank.
class LogAllGather final : public Schedule {
 public:
  explicit LogAllGather(uint32_t ranks);
  [[nodiscard]] uint32_t steps(uint32_t rank, uint32_t lane) const override;
  [[nodiscard]] Step step(uint32_t rank, uint32_t lane, uint32_t k) const override;

 private:
  const uint32_t rounds_;
};

/// The all-gather backwards: rank r sends r + 2^i its sums of the chunks that belong there.
/// S(P-1)/P bytes a rank; the sums lie in scratch.
class LogReduceScatter final : public Schedule {
 public:
  explicit LogReduceScatter(uint32_t ranks);
  [[nodiscard]] uint32_t scratch([[maybe_unused]] uint32_t rank) const override {
    return facts().ranks > 1 ? facts().ranks : 0;
  }
  [[nodiscard]] uint32_t steps(uint32_t rank, uint32_t lane) const override;
  [[nodiscard]] Step step(uint32_t rank, uint32_t lane, uint32_t k) const override;

 private:
  const uint32_t rounds_;
};

}  // namespace horoacc::schedule
