#pragma once
// Everything that is demanded of a schedule, for one shape: proven under every way of running it,
// and costing what it is said to cost.
#include <string>

#include "schedule/algorithms.h"
#include "schedule/prove/prover.h"

namespace horoacc::schedule {

struct Audit {
  Proof proof;                       ///< of one window at depth 1
  Fraction most_sent;                ///< by any rank
  uint64_t network_messages = 0;     ///< between hosts
  std::vector<Fraction> host_sends;  ///< what leaves each host
};

/// kInvalid tells what is wrong, and how the schedule was run.
[[nodiscard]] Result<Audit> AuditSchedule(const Schedule& schedule, const Algorithm& algorithm,
                                          const Plan& plan);
[[nodiscard]] Result<Audit> AuditAlgorithm(const Algorithm& algorithm, const Plan& plan);

}  // namespace horoacc::schedule
