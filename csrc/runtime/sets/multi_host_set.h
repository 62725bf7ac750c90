#pragma once
// A process set whose ranks do not all share memory: which host each rank is on.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "execute/schedule/schedule_run.h"
#include "schedule/algorithms.h"
#include "schedule/choice.h"

namespace horoacc {

class MultiHostSet {
 public:
  /// `host_of`: by rank of the job. `ranks`: the set's, ascending; `me`: this rank's index in them.
  MultiHostSet(const std::vector<int>& host_of, std::vector<int> ranks, uint32_t me,
               std::shared_ptr<const schedule::MeasuredTable> measured);

  [[nodiscard]] uint32_t me() const { return me_; }
  [[nodiscard]] const std::vector<int>& ranks() const { return ranks_; }
  [[nodiscard]] uint32_t size() const { return static_cast<uint32_t>(ranks_.size()); }
  /// The algorithms that are possible on these hosts, with their costs.
  [[nodiscard]] schedule::AlgorithmChoice& choice() { return *choice_; }

  /// A schedule, and the order in which it numbers the ranks. `root`: index in the set.
  struct Scheduled {
    std::shared_ptr<const schedule::Schedule> schedule;
    RunGroup group;
    schedule::Cut cut{};
  };
  Result<Scheduled> Schedule(std::string_view algorithm, uint32_t root);
  /// All ranks begin the same runs in the same order.
  uint64_t NextRun() { return ++runs_; }

 private:
  const uint32_t me_;
  const std::vector<int> ranks_;
  std::vector<uint32_t> by_host_;         ///< indices of ranks, host after host
  std::vector<uint32_t> ranks_per_host_;  ///< in the order of `by_host_`
  std::optional<schedule::AlgorithmChoice> choice_;
  uint64_t runs_ = 0;
  std::map<std::pair<std::string, uint32_t>, Scheduled> known_;
};

}  // namespace horoacc
