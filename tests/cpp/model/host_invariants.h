#pragma once
// What must hold of a process set on several hosts, whatever the schedule: all ranks see one log,
// and a rank that asks is told the truth.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "negotiate/controller.h"

namespace horoacc::model {

/// One decision in terms of all hosts.
struct SeenDecision {
  Decision::Kind kind = Decision::Kind::kRun;
  Path path = Path::kNone;
  bool partial = false;
  std::vector<std::string> names;  ///< empty: this host has none of the calls
  Error error = MakeError(ErrorKind::kOk, "");
  int last_joined = -1;
  uint64_t unnamed = 0;
  std::vector<std::vector<std::byte>> results;
  uint32_t took_part = 0, looked_on = 0;  ///< ranks, as bits
};

/// Decisions in the order of the rank that was first to take each.
class OneLog {
 public:
  [[nodiscard]] size_t size() const { return log_.size(); }

  /// A rank's decision number `place`. Returns what is wrong with it; empty: nothing.
  [[nodiscard]] std::string Take(size_t place, SeenDecision seen, uint32_t all_ranks) {
    if (place == log_.size()) {
      log_.push_back(std::move(seen));
    } else {
      SeenDecision& first = log_[place];
      const bool equal =
          first.kind == seen.kind && first.path == seen.path && first.partial == seen.partial &&
          first.error.kind == seen.error.kind && first.error.message == seen.error.message &&
          first.error.culprit == seen.error.culprit && first.last_joined == seen.last_joined &&
          first.unnamed == seen.unnamed && first.results == seen.results;
      const bool one_has_none = first.names.empty() || seen.names.empty();
      if (!equal || (!one_has_none && first.names != seen.names))
        return "two ranks see different decisions";
      if (first.names.empty()) first.names = std::move(seen.names);
      first.took_part |= seen.took_part;
      first.looked_on |= seen.looked_on;
    }
    const SeenDecision& now = log_[place];
    if (!now.partial || (now.took_part | now.looked_on) != all_ranks) return "";
    if (now.looked_on == 0) return "a decision is partial, and all ranks take part in it";
    return now.took_part == 0 ? "a decision that concerns no rank" : "";
  }

 private:
  std::vector<SeenDecision> log_;
};

/// The logs of all hosts. A call of a direct exchange is in no order with the decisions of the
/// root, but both hosts see the same rounds of it. In a set on two hosts an eager decision of a
/// single call may be of either kind, so it counts as one without an order.
class AllLogs {
 public:
  explicit AllLogs(std::vector<int> host_of)
      : host_of_(std::move(host_of)), places_(host_of_.size()) {}

  /// The rank's next decision. Returns what is wrong with it; empty: nothing.
  [[nodiscard]] std::string Take(int rank, const SeenDecision& seen) {
    const bool direct = host_of_.back() == 1 && seen.kind == Decision::Kind::kRun &&
                        seen.path == Path::kEager && seen.names.size() == 1;
    std::string wrong = TakeHere(rank, seen);
    if (!wrong.empty()) return wrong;
    return Append(rank, {kAcross, direct ? seen.names[0] : ""}, seen, (1u << host_of_.size()) - 1);
  }
  /// The same of one that only the ranks of its host have.
  [[nodiscard]] std::string TakeHere(int rank, const SeenDecision& seen) {
    return Append(rank, {host_of_[rank], ""}, seen, 0);
  }
  /// A round of a granted call has results: it is in no order with the root's decisions.
  [[nodiscard]] std::string TakeRound(int rank, const std::string& name, uint64_t run) {
    SeenDecision seen;
    seen.names = {name};
    seen.unnamed = run;
    return Append(rank, {kAcross, name}, seen, (1u << host_of_.size()) - 1);
  }
  [[nodiscard]] int HostOf(int rank) const { return host_of_[rank]; }
  /// Whether the rank has taken all that others have.
  [[nodiscard]] bool HasAll(int rank) const {
    for (const auto& [part, log] : logs_) {
      if (part.first != kAcross && part.first != host_of_[rank]) continue;
      const auto place = places_[rank].find(part);
      if (place == places_[rank].end() || place->second != log.size()) return false;
    }
    return true;
  }

 private:
  static constexpr int kAcross = -1;
  /// A host's log, or what all hosts have in common: the root's order, or the rounds of one name.
  using Part = std::pair<int, std::string>;

  std::string Append(int rank, const Part& part, const SeenDecision& seen, uint32_t all_ranks) {
    return logs_[part].Take(places_[rank][part]++, seen, all_ranks);
  }

  std::vector<int> host_of_;
  std::vector<std::map<Part, size_t>> places_;  ///< by rank
  std::map<Part, OneLog> logs_;
};

/// A rank's question, and what it may expect of the answer.
struct Question {
  std::optional<TensorKey> call;  ///< none: the join
  std::string name;
  int joins_over = 0;  ///< joins that the rank had seen end
  uint32_t here = 0;   ///< ranks of its host that had submitted it and must be counted, as bits
};

/// `has`, `joined`: the ranks that have submitted the call by now, and that have joined.
[[nodiscard]] inline std::string WrongWith(const Attendance& answer, const Question& question,
                                           uint32_t has, uint32_t joined, uint32_t all_ranks) {
  const auto bits = [](const std::vector<int>& ranks) {
    uint32_t set = 0;
    for (const int rank : ranks) set |= 1u << rank;
    return set;
  };
  const uint32_t ready = bits(answer.ready), missing = bits(answer.missing);
  if ((ready & missing) != 0) return "an answer counts a rank twice";
  if (!question.call) {
    if ((ready & ~joined) != 0) return "an answer says that a rank has joined that has not";
    return (ready | missing) == all_ranks ? "" : "an answer leaves a rank out";
  }
  if ((ready & ~has) != 0)
    return "an answer counts a rank that has not submitted the call: " +
           std::to_string(ready & ~has);
  if ((question.here & ~ready) != 0)
    return "an answer about " + question.name +
           " leaves out ranks of the host that asked: " + std::to_string(question.here & ~ready);
  if ((all_ranks & ~ready & ~missing & ~joined) != 0) return "an answer leaves a rank out";
  return "";
}

}  // namespace horoacc::model
