#pragma once
// Which algorithm reaches a goal soonest on one topology: a model of the links, corrected by what
// was measured.
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "schedule/algorithms.h"
#include "schedule/measured.h"

namespace horoacc::schedule {

/// The model's costs, in seconds and bytes a second: those of a network of 10 Gbit/s that is used
/// through sockets.
struct LinkCosts {
  double round = 30e-6;   ///< a message for which a rank waits
  double message = 5e-6;  ///< a message that passes a host's interface
  double rank = 4e9;      ///< of a rank's messages, each way
  double host = 1.25e9;   ///< of a host's interface, one way
};

class AlgorithmChoice {
 public:
  /// `in_order`: the ranks lie host after host, so that sums in their order can use the hosts.
  AlgorithmChoice(Topology topology, std::shared_ptr<const MeasuredTable> measured,
                  bool in_order = true)
      : topology_(std::move(topology)), measured_(std::move(measured)), in_order_(in_order) {}

  /// The quickest for a vector of so many bytes. `in_rank_order`: only among those whose sums have
  /// the bits of one host. The result depends only on the arguments and the constructor's, so all
  /// ranks choose alike.
  [[nodiscard]] std::string_view For(Goal goal, uint64_t bytes, bool in_rank_order);

  /// Whether sums in the order of the ranks are expected to take hardly longer than the quickest.
  /// It depends on the hosts and not on a vector's size, so that neither do a result's bits.
  [[nodiscard]] bool RankOrderIsCheap(Goal goal);

  /// The seconds that the model expects, without measurements.
  [[nodiscard]] double Expected(const Algorithm& algorithm, uint64_t bytes);

 private:
  /// The load of a whole run, in parts of the vector.
  struct Load {
    uint32_t rounds = 0;
    uint64_t messages = 0;  ///< through the busiest host's interface, one way
    double rank = 0;        ///< through the busiest rank
    double host = 0;
  };
  struct Expectation {
    const Algorithm* algorithm = nullptr;
    double seconds = 0;
  };
  /// `measured`: only algorithms that were measured on these hosts; otherwise by the model.
  [[nodiscard]] Expectation Quickest(Goal goal, uint64_t bytes, bool measured);
  [[nodiscard]] bool Measured(const Algorithm& algorithm) const {
    return !measured_->Of(algorithm.name, topology_).empty();
  }
  const Load& LoadOf(const Algorithm& algorithm);
  /// The measured time divided by the model's; 1 if the algorithm was not measured.
  [[nodiscard]] double Correction(const Algorithm& algorithm, uint64_t bytes);

  const Topology topology_;
  const std::shared_ptr<const MeasuredTable> measured_;
  const bool in_order_;
  std::map<Goal, bool> rank_order_is_cheap_;
  std::map<std::string_view, Load> loads_;
};

}  // namespace horoacc::schedule
