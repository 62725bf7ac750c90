#pragma once
// One rank of a process set on several hosts, in the place of its engine: it submits what its
// script says, and takes decisions, over production's controller.
#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "execute/shared_memory/result_gate.h"
#include "model/host_invariants.h"
#include "model/host_script.h"
#include "model/segment_digest.h"
#include "negotiate/control_segment/host_group.h"
#include "support/segment_views.h"

namespace horoacc::model {

inline constexpr float kSpent = -1e9f;  // what a caller leaves in its input once the call is over
inline constexpr size_t kNumbers = 4;   // of a call

inline float InputOf(int rank, int round) {
  return static_cast<float>((1 << rank) * (1 + 16 * (round % 8)));
}

class HostRank {
 public:
  /// The farthest that surely knows that the rank waits for a call.
  enum class Told : uint8_t { kNobody, kHost, kLeader, kRoot };
  /// A call of the rank that it has not seen decided.
  struct Call {
    std::string name;
    TensorKey key{};
    uint64_t number = 0;     ///< of an unnamed one
    bool announced = false;  ///< false: only its row is written
    Recurs recurs = Recurs::kNo;
    bool refuses = false, changed = false;
    bool begun = false;  ///< it runs, and may be dropped
    Told told = Told::kNobody;
    int pauses = 0;  ///< there had been when `told` was set
  };
  struct Place {
    const HostShape* shape = nullptr;
    int rank = 0;
    testing::SegmentRank* segment = nullptr;
    const Arena* arena = nullptr;
    std::map<std::string, float*>* inputs = nullptr;  ///< by name: the calls' four numbers
  };
  /// A run that began without the root.
  struct Run {
    Decision decision;
    std::string name{};  ///< of its call; empty: it drains
  };
  explicit HostRank(Place place) : place_(place) {}

  // What the rank may do next.
  /// `pauses`: so far.
  [[nodiscard]] bool MayStep(int pauses) const;
  /// Whether its next step needs another pause.
  [[nodiscard]] bool IsLate(int pauses) const {
    return step_ < script().size() && pauses < script()[step_].pauses;
  }
  [[nodiscard]] bool MayAnnounce() const;
  [[nodiscard]] bool MaySubmitAgain() const;
  [[nodiscard]] bool MayTake() const { return !MayAnnounce() && HasMore(); }
  [[nodiscard]] bool MayFinish() const {
    return !unfinished_.empty() &&
           (runs_.empty() || runs_.front().decision.end > unfinished_.front().end);
  }
  [[nodiscard]] bool MayUnblock(int pauses) const;
  [[nodiscard]] bool MayClose() const;

  // What it does. `pauses`: of all ranks, so far.
  /// The next step, which the caller carries out if it is a question.
  const HostStep& Step(int pauses);
  void Announce(int pauses);
  void SubmitAgain(int pauses);
  void Unblock();
  void Pump() { Must(controller().Pump()); }
  void Close();
  /// The log's next decision; none: there was only news.
  [[nodiscard]] std::optional<Decision> Take();
  /// Completes the calls of a decision, as the engine's driver does. In terms of all hosts.
  [[nodiscard]] SeenDecision Account(const Decision& decision);
  /// The rank has carried the decision out, now or when FinishFirst is called.
  void Finish(Decision decision);
  void FinishFirst();
  /// Begins a run that is in no order with others.
  [[nodiscard]] SeenDecision Begin(const Decision& decision);
  [[nodiscard]] const std::vector<Run>& runs() const { return runs_; }
  [[nodiscard]] bool IsHeld(const Run& run) const {
    return !run.name.empty() && ResultGate(control().slot(run.decision.slot).gate).held() &&
           !HasFault(HostFault::kPassesGate);
  }
  /// The run is over; true: its call has its results. Otherwise it is undecided again.
  [[nodiscard]] bool EndRun(size_t index);

  [[nodiscard]] Controller& controller() const { return *place_.segment->controller; }
  [[nodiscard]] SetSegment& control() const { return *place_.segment->control; }
  [[nodiscard]] std::vector<Call>& calls() { return calls_; }
  [[nodiscard]] const std::vector<Call>& calls() const { return calls_; }
  [[nodiscard]] const Call* Find(const std::string& name) const;
  /// Times that the call of this name has run.
  [[nodiscard]] int RoundsOf(const std::string& name) const;
  /// Has the rank submitted round `round` of a name?
  [[nodiscard]] bool HasSubmitted(const std::string& name, int round) const;
  [[nodiscard]] bool closed() const { return closed_; }
  [[nodiscard]] bool joined() const { return joined_; }
  [[nodiscard]] int joins() const { return joins_; }
  [[nodiscard]] int joins_over() const { return joins_over_; }
  [[nodiscard]] size_t taken() const { return taken_; }
  [[nodiscard]] size_t step() const { return step_; }
  /// Its script is over, and all its calls are.
  [[nodiscard]] bool through() const;
  /// A call or a join of the rank is under way, or one that waits for an id: its engine looks at
  /// its peers meanwhile.
  [[nodiscard]] bool WaitsForOthers() const {
    return !calls_.empty() || !again_.empty() || joined_;
  }
  /// What went wrong on this rank; empty: nothing.
  [[nodiscard]] const std::string& wrong() const { return wrong_; }
  /// The names that looked up an id since the last call of this, each with its id.
  [[nodiscard]] std::vector<std::pair<std::string, uint32_t>> TakeLookups() {
    return std::exchange(lookups_, {});
  }
  void MixInto(StateHash& hash) const;
  void Must(const Status& status) {
    if (!status.ok()) Wrong("an error: " + status.error().message);
  }

 private:
  [[nodiscard]] bool HasMore() const;
  [[nodiscard]] bool HasFault(HostFault fault) const { return place_.shape->fault == fault; }
  [[nodiscard]] const HostScript& script() const { return place_.shape->scripts[place_.rank]; }
  using Parts = std::map<std::pair<uint32_t, uint32_t>, uint64_t>;
  /// Decisions of the host, the plan's version, and the calls that wait for the rest of buckets.
  using BlockedState = std::tuple<uint64_t, uint32_t, Parts>;
  [[nodiscard]] Parts PartsOfBuckets() const;
  [[nodiscard]] BlockedState Blocked() const;
  [[nodiscard]] uint64_t ProgressOfHost() const;
  void Submit(const std::string& name, int pauses, HostStep::Kind kind = HostStep::Kind::kSubmit);
  [[nodiscard]] bool LookUp(Call& call, bool afresh);
  void WriteRow(Call& call);
  void CheckResult(const Call& call, const CallFacts& facts);
  void Wrong(std::string text) {
    if (wrong_.empty()) wrong_ = std::move(text);
  }

  Place place_;
  size_t step_ = 0;
  std::vector<Call> calls_;
  std::deque<std::string> again_;
  std::deque<Decision> unfinished_;  ///< in the order of the log
  std::vector<Run> runs_;            ///< so, too
  std::map<std::string, SetSegment::NamedId> ids_;
  std::map<std::string, int> rounds_;      ///< times that a name has run
  std::optional<BlockedState> unblocked_;  ///< when it last said that it is blocked
  std::vector<std::pair<std::string, uint32_t>> lookups_;
  uint64_t unnamed_ = 0;
  uint32_t waits_ = 0;  ///< sync rounds
  size_t taken_ = 0;    ///< decisions, which all ranks take in one order
  int joins_ = 0, joins_over_ = 0;
  uint64_t stuck_at_ = 0;  ///< the host's progress when there was no id for a name
  bool joined_ = false, closed_ = false, wait_begun_ = false;
  std::string wrong_;
};

// What may happen next.

inline bool HostRank::HasMore() const {
  const auto& group = static_cast<const HostGroup&>(controller());
  return control().header().log_words.load() != group.log().taken();
}

inline const HostRank::Call* HostRank::Find(const std::string& name) const {
  const auto found = std::ranges::find(calls_, name, &Call::name);
  return found == calls_.end() ? nullptr : &*found;
}

inline int HostRank::RoundsOf(const std::string& name) const {
  const auto found = rounds_.find(name);
  return found == rounds_.end() ? 0 : found->second;
}

inline bool HostRank::HasSubmitted(const std::string& name, int round) const {
  const Call* const call = Find(name);
  return RoundsOf(name) > round || (RoundsOf(name) == round && call && call->announced);
}

inline bool HostRank::MayAnnounce() const {
  return std::ranges::any_of(calls_, [](const Call& call) { return !call.announced; });
}

inline bool HostRank::MayStep(int pauses) const {
  if (step_ == script().size()) return false;
  const HostStep& step = script()[step_];
  if (IsLate(pauses)) return false;
  const bool joins = step.kind == HostStep::Kind::kJoin;
  const bool submits = Submits(step.kind);
  if (MayAnnounce()) return joins && HasFault(HostFault::kJoinsBeforeRow);
  const bool waits = step.kind == HostStep::Kind::kWait;
  if (joined_ && (waits || submits)) return false;
  if (waits) return calls_.empty() && again_.empty();
  if (joins) return !joined_ && again_.empty();
  if (!submits) return true;
  const bool in_flight =
      !step.name.empty() &&
      (Find(step.name) != nullptr || std::ranges::find(again_, step.name) != again_.end());
  return !in_flight && stuck_at_ == 0;
}

inline bool HostRank::MaySubmitAgain() const {
  return !MayAnnounce() && !again_.empty() && !Find(again_.front()) &&
         stuck_at_ != ProgressOfHost();
}

// Something has changed since it last said so. (A rank says so every few milliseconds; what has
// been said is the controller's to know.)
inline bool HostRank::MayUnblock(int pauses) const {
  if (HasMore() || MayAnnounce() || MayStep(pauses) || IsLate(pauses)) return false;
  const auto parts = PartsOfBuckets();
  return !parts.empty() && (!unblocked_ || *unblocked_ != Blocked());
}

inline HostRank::BlockedState HostRank::Blocked() const {
  return {control().header().decided, *control().plan().version, PartsOfBuckets()};
}

inline bool HostRank::MayClose() const {
  const bool all_done = !HasMore() && unfinished_.empty() && runs_.empty();
  return controller().Ended() && !MayAnnounce() && (all_done || HasFault(HostFault::kClosesEarly));
}

inline bool HostRank::through() const {
  return closed_ || (step_ == script().size() && calls_.empty() && again_.empty() && !joined_ &&
                     runs_.empty());
}

inline uint64_t HostRank::ProgressOfHost() const {
  uint64_t sum = 1;
  for (uint32_t r = 0; r < control().ranks(); ++r) sum += control().cursor(r).words;
  return sum;
}

// Generations of the calls that the rank has submitted and that are not decided, by bucket and id.
inline HostRank::Parts HostRank::PartsOfBuckets() const {
  Parts parts;
  for (const Call& call : calls_) {
    const uint32_t bucket = call.key.id < kNamedIds ? control().id(call.key.id).bucket.load() : 0;
    if (bucket != 0) parts[{bucket, call.key.id}] = call.key.generation;
  }
  return parts;
}

// Decisions.

inline std::optional<Decision> HostRank::Take() {
  if (HasFault(HostFault::kFinishesEarly))
    (void)control().FinishUpTo(control().header().log_words.load(), std::nullopt);
  auto next = controller().Next();
  if (next.ok()) return std::move(next.value());
  Must(next.error());
  return std::nullopt;
}

inline SeenDecision HostRank::Account(const Decision& decision) {
  const uint32_t bit = 1u << place_.rank;
  const bool runs = decision.kind == Decision::Kind::kRun;
  SeenDecision seen{decision.kind,
                    decision.path,
                    decision.partial,
                    {},
                    decision.error,
                    decision.last_joined,
                    decision.unnamed,
                    {},
                    0,
                    0};
  for (const CallFacts& facts : decision.facts) seen.results.push_back(facts.result);
  for (size_t k = 0; k < decision.ids.size(); ++k) {
    const uint32_t id = decision.ids[k];
    const bool named = id < kNamedIds;
    const auto found = std::ranges::find_if(calls_, [&](const Call& call) {
      return call.key.id == id && (runs || call.key.generation == decision.generations[k]);
    });
    if (named) seen.names.push_back(control().NameOf(id));
    if (found == calls_.end()) {
      seen.looked_on |= bit;
      if (runs && !(decision.partial && joined_)) Wrong("runs what a rank has not submitted");
      continue;
    }
    seen.took_part |= bit;
    if (!named) seen.names.push_back(found->name);
    if (seen.names.back() != found->name) Wrong("an id stands for another name");
    if (!found->announced) Wrong("a decision about a call that is not announced");
    if (runs && decision.path == Path::kEager) CheckResult(*found, decision.facts[k]);
    if (named && place_.shape->eager) std::fill_n(place_.inputs->at(found->name), kNumbers, kSpent);
    if (!runs && place_.shape->again) again_.push_back(found->name);
    if (found->begun) Wrong("a call is decided while a run of it goes on");
    if (found->refuses && runs) Wrong("runs what a rank refuses");
    calls_.erase(found);
  }
  if (decision.ids.empty() && decision.partial) {
    seen.looked_on |= bit;
    if (!joined_) Wrong("runs what a rank has not submitted");
  }
  if (runs && !decision.partial) {  // of a partial one not all hosts know the name
    for (const std::string& name : seen.names) ++rounds_[name];
  }
  if (seen.names.size() < decision.ids.size()) seen.names.clear();
  if (decision.kind == Decision::Kind::kJoin) {
    if (!std::exchange(joined_, false)) Wrong("a join ends that a rank has not joined");
    ++joins_over_;
    unnamed_ = std::max(unnamed_, decision.unnamed);
  }
  ++taken_;
  return seen;
}

inline void HostRank::CheckResult(const Call& call, const CallFacts& facts) {
  float result = 0;
  std::memcpy(&result, facts.result.data(), sizeof result);
  float sum = 0;
  for (size_t r = 0; r < place_.shape->scripts.size(); ++r)
    sum += InputOf(static_cast<int>(r), RoundsOf(call.name));
  if (result == sum) return;
  Wrong("a result of other inputs: " + call.name + " " + std::to_string(result) + " for " +
        std::to_string(sum));
}

inline void HostRank::Finish(Decision decision) {
  const auto later = std::ranges::find_if(
      unfinished_, [&](const Decision& other) { return other.end > decision.end; });
  unfinished_.insert(later, std::move(decision));
  while (!place_.shape->late_finish && MayFinish()) FinishFirst();
}

inline SeenDecision HostRank::Begin(const Decision& decision) {
  Run run{decision};
  SeenDecision seen;
  seen.kind = decision.kind;
  seen.unnamed = decision.run;
  for (const uint32_t id : decision.ids) {
    const auto found =
        std::ranges::find_if(calls_, [&](const Call& call) { return call.key.id == id; });
    if (found == calls_.end() || !found->announced || found->refuses) {
      Wrong("begins what a rank has not submitted");
      return seen;
    }
    found->begun = true;
    run.name = found->name;
    seen.names = {run.name};
  }
  runs_.push_back(std::move(run));
  return seen;
}

inline bool HostRank::EndRun(size_t index) {
  using Gate = ResultGate<std::atomic<uint32_t>>;
  Run run = std::move(runs_[index]);
  runs_.erase(runs_.begin() + static_cast<ptrdiff_t>(index));
  bool has_results = false;
  if (const auto call = std::ranges::find(calls_, run.name, &Call::name); call != calls_.end()) {
    has_results = Gate(control().slot(run.decision.slot).gate).Pass() != Gate::Passage::kDropped;
    call->begun = false;
    if (has_results) {
      ++rounds_[run.name];
      calls_.erase(call);
    }
  }
  Finish(std::move(run.decision));
  return has_results;
}

inline void HostRank::FinishFirst() {
  Must(controller().Finish(unfinished_.front()));
  unfinished_.pop_front();
}

inline void HostRank::MixInto(StateHash& hash) const {
  hash.Mix(step_ << 32 | taken_);
  hash.Mix(static_cast<const HostGroup&>(controller()).log().taken());
  hash.Mix(control().cursor(control().me()).words.load());
  hash.Mix(joined_ | closed_ << 1 | wait_begun_ << 2 | static_cast<uint64_t>(waits_) << 8 |
           unnamed_ << 24);
  for (const Call& call : calls_) {
    hash.Mix(call.name);
    hash.Mix(call.key.generation << 17 | call.key.id << 1 | (call.announced ? 1 : 0));
  }
  for (const std::string& name : again_) hash.Mix(name);
  for (const Run& run : runs_) hash.Mix(run.decision.run);
  for (const auto& [name, id] : ids_) hash.Mix(static_cast<uint64_t>(id.id) << 32 | id.id_version);
  hash.Mix(stuck_at_);
  if (!unblocked_) return;
  const auto& [decided, plan, parts] = *unblocked_;
  hash.Mix(decided << 32 | plan);
  for (const auto& [part, generation] : parts)
    hash.Mix(generation << 32 | part.first << 16 | part.second);
}

}  // namespace horoacc::model

#include "model/host_rank_calls.h"
