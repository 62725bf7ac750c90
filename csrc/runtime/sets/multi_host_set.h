#pragma once
// A process set whose ranks do not all share memory: which host each rank is on.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "execute/schedule/composed_allreduce.h"
#include "execute/schedule/schedule_run.h"
#include "negotiate/multi_host/eager.h"
#include "schedule/algorithms.h"
#include "schedule/choice.h"

namespace horoacc {

/// Of the links by which hosts exchange what their GPUs can: no run between hosts has this number.
inline constexpr uint64_t kGpuExchange = uint64_t{1} << 62;

class MultiHostSet {
 public:
  /// `host_of`: by rank of the job. `ranks`: the set's, ascending; `me`: this rank's index in them.
  MultiHostSet(const std::vector<int>& host_of, std::vector<int> ranks, uint32_t me,
               const Settings& settings, std::shared_ptr<const schedule::MeasuredTable> measured);

  [[nodiscard]] uint32_t me() const { return me_; }
  [[nodiscard]] const std::vector<int>& ranks() const { return ranks_; }
  [[nodiscard]] uint32_t size() const { return static_cast<uint32_t>(ranks_.size()); }
  [[nodiscard]] const EagerRule& eager() const { return *eager_; }
  /// The algorithms that are possible on these hosts, with their costs.
  [[nodiscard]] schedule::AlgorithmChoice& choice() { return *choice_; }

  /// A schedule, and the order in which it numbers the ranks. `root`: index in the set.
  struct Scheduled {
    std::shared_ptr<const schedule::Schedule> schedule;
    RunGroup group;
    schedule::Cut cut{};
  };
  Result<Scheduled> Schedule(std::string_view algorithm, uint32_t root);
  /// Whether allreduces of memory that all ranks of each host see are composed: the stages inside
  /// hosts on the paths of one host. Not if the order of summation, or an algorithm that a setting
  /// names, asks for ranks one by one.
  [[nodiscard]] bool composes() const { return composes_; }
  /// Whether the sums of composed allreduces are wide (see Payload), and their factors.
  [[nodiscard]] bool wide() const { return wide_; }
  [[nodiscard]] Scale ScaleOf(const Request& request, DType type) const {
    const bool average = request.op == ReduceOp::kAverage;
    const Scale scale{request.prescale, request.postscale,
                      average ? static_cast<double>(size()) : 1.0};
    return wide_ ? scale : DividedFirst(type, scale);
  }
  /// Whether calls of locked plans may be granted, for which all ranks of the set answer alike.
  [[nodiscard]] bool grants() const { return grants_; }
  /// The schedule of this rank's rail; none if it is no rail. `bytes`: of a rail's part.
  /// `algorithm`: by this one; "": the best.
  struct ComposedSchedule {
    Rail rail;
    std::optional<Scheduled> between;
    std::string_view algorithm;
  };
  Result<ComposedSchedule> Compose(uint64_t bytes, std::string_view algorithm);
  /// By host: the lowest rank of the job that is in the set.
  [[nodiscard]] std::vector<int> LowestOfHosts() const;
  /// All ranks begin the same runs in the same order. `run`: the number of one that does not begin
  /// in this order; 0: the next one.
  [[nodiscard]] RunOptions NextRun(uint32_t set, const schedule::Cut& cut, uint64_t window_bytes,
                                   uint64_t run = 0);

 private:
  const uint32_t me_;
  const std::vector<int> ranks_;
  std::vector<uint32_t> by_host_;         ///< indices of ranks, host after host
  std::vector<uint32_t> ranks_per_host_;  ///< in the order of `by_host_`
  std::optional<schedule::AlgorithmChoice> choice_;
  bool in_rank_order_ = false;  ///< of composed allreduces
  const bool wide_;
  bool composes_ = false;
  bool grants_ = false;
  std::optional<EagerRule> eager_;
  std::optional<schedule::AlgorithmChoice> between_choice_;  ///< of one rank a host
  std::map<std::string, Scheduled> between_;
  uint64_t runs_ = 0;
  std::map<std::pair<std::string, uint32_t>, Scheduled> known_;
};

}  // namespace horoacc
