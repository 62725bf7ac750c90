#pragma once
// The checks of a schedule for one shape: proven under every way of running it, and as expensive as
// its closed form.
#include <string>

#include "schedule/algorithms.h"
#include "schedule/prove/prover.h"

namespace horoacc::schedule {

struct Audit {
  Proof proof;                       ///< for one window at depth 1
  Fraction most_sent;                ///< by any rank
  uint64_t network_messages = 0;     ///< between hosts
  std::vector<Fraction> host_sends;  ///< sent by each host to others
};

/// kInvalid names the fault, and how the schedule was run.
[[nodiscard]] Result<Audit> AuditSchedule(const Schedule& schedule, const Algorithm& algorithm,
                                          const Plan& plan);
[[nodiscard]] Result<Audit> AuditAlgorithm(const Algorithm& algorithm, const Plan& plan);

}  // namespace horoacc::schedule
