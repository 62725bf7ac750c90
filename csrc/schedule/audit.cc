#include "schedule/audit.h"

#include <bit>

namespace horoacc::schedule {
namespace {

struct Way {
  const char* name;
  Rules rules;
};

// Depth 1 is the worst case for deadlocks of lanes that give slots back early; a lane that goes
// from slot to slot needs a second slot. The last rows have scratch for fewer windows than run.
constexpr Way kWays[] = {
    {"apart", {}},
    {"in place", {.in_place = true}},
    {"from slot to slot", {.depth = 2, .fused = true}},
    {"in windows", {.windows = 3, .places = 2}},
    {"from slot to slot, in windows", {.depth = 2, .fused = true, .windows = 2, .places = 1}},
    {"in windows, in place", {.in_place = true, .windows = 2, .places = 1}},
};
// Above so many ranks only two windows run, with scratch for one: a third window could meet no
// state that the second has not met.
constexpr uint32_t kMostRanksInAllWindows = 24;

std::string CheckCost(const Proof& proof, const Schedule& schedule, const Algorithm& algorithm,
                      const Plan& plan, Audit& audit) {
  const uint32_t chunks = schedule.facts().chunks;
  std::vector<uint64_t> sent(plan.topology.ranks());
  audit.host_sends.assign(plan.topology.hosts(), {0, chunks});
  for (const LinkUse& link : proof.links) {
    sent[link.from] += link.chunks;
    const uint32_t host = plan.topology.host_of(link.from);
    if (host == plan.topology.host_of(link.to)) continue;
    audit.host_sends[host].over += link.chunks;
    audit.network_messages += link.messages;
  }
  for (uint32_t rank = 0; rank < sent.size(); ++rank) {
    const Fraction counted{sent[rank], chunks};
    if (counted.over > audit.most_sent.over) audit.most_sent = counted;
    const Fraction stated = algorithm.sent(plan, rank);
    if (counted == stated) continue;
    return "rank " + std::to_string(rank) + " sends " + std::to_string(counted.over) + "/" +
           std::to_string(counted.under) + " of the bytes, and is said to send " +
           std::to_string(stated.over) + "/" + std::to_string(stated.under);
  }
  const uint32_t rounds = algorithm.rounds(plan);
  const bool aligned =
      !schedule.facts().in_rank_order || std::has_single_bit(plan.topology.fewest());
  const bool exact = plan.topology.equal() && aligned;
  if (proof.rounds > rounds || (exact && proof.rounds != rounds)) {
    return "takes " + std::to_string(proof.rounds) + " rounds, and is said to take " +
           std::to_string(rounds);
  }
  return {};
}

}  // namespace

Result<Audit> AuditSchedule(const Schedule& schedule, const Algorithm& algorithm,
                            const Plan& plan) {
  Audit audit;
  for (const Way& way : kWays) {
    const Rules& rules = way.rules;
    // Messages of any size cannot be exchanged in place.
    if (rules.in_place && algorithm.goal == Goal::kAllToAll) continue;
    const bool once = plan.topology.ranks() > kMostRanksInAllWindows;
    if (once && rules.windows > 2 && algorithm.goal != Goal::kAllToAll) continue;
    Result<Proof> proof = Prove(schedule, rules);
    if (!proof.ok()) {
      return std::move(proof.error()).Within(std::string(algorithm.name) + ", run " + way.name);
    }
    if (&way == kWays) audit.proof = std::move(proof).value();
  }
  if (std::string wrong = CheckCost(audit.proof, schedule, algorithm, plan, audit);
      !wrong.empty()) {
    return MakeError(ErrorKind::kInvalid, std::string(algorithm.name) + ": " + wrong);
  }
  return audit;
}

Result<Audit> AuditAlgorithm(const Algorithm& algorithm, const Plan& plan) {
  return AuditSchedule(*algorithm.make(plan), algorithm, plan);
}

}  // namespace horoacc::schedule
