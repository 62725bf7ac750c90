#pragma once
// The ranks of a process set on several hosts, moved by hand: each is production's controller and,
// on the lowest of its host, production's leader; host_rank.h stands in the place of the engine.
// For model/replay_search.h.
#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "model/host_rank.h"
#include "negotiate/multi_host/multi_host_messages.h"
#include "negotiate/multi_host/multi_host_tree.h"
#include "negotiate/multi_host/subtree_aggregator.h"
#include "support/multi_host_views.h"

namespace horoacc::model {

inline constexpr size_t kKindAt = 4;  // of a message, behind the number of its set

inline MultiHostMessage KindOf(const testing::Bytes& message) {
  return static_cast<MultiHostMessage>(message[kKindAt]);
}

/// A rank that dies does nothing more, and what it had sent arrives or is lost. Its engine's
/// liveness (a process descriptor, the end of a connection, heartbeats) then aborts the job, and
/// every waiting call of the survivors fails; that is no part of this model. What is: without the
/// dead rank nothing is decided that needs its input, the survivors see equal results and get no
/// error of the controller's own, and one that stays behind waits for a call or a join, in which
/// its engine looks at its peers.
class HostModel {
 public:
  struct Action {
    enum class Kind : uint8_t {
      kStep,         ///< `rank` goes on in its script
      kAnnounce,     ///< it announces the call whose row it has written
      kSubmitAgain,  ///< it submits a call that was given up or had no id
      kTake,         ///< it takes the next decision
      kRun,          ///< its run number `from` of those that began without the root is over
      kFinish,       ///< it has carried out a decision, with HostShape::late_finish
      kPump,
      kUnblock,
      kClose,  ///< it takes note of the set's end
      kDie,
      kDeliver,  ///< it receives the next message of `from`
      kLose,     ///< all messages of `from`, which is dead, to it are lost
      kPause,    ///< all ranks do nothing for a while
    };
    Kind kind = Kind::kStep;
    int rank = 0;
    int from = 0;
    bool operator==(const Action&) const = default;
  };

  /// `clock_ns`: the time of this process, which each pause moves on.
  HostModel(HostShape shape, int64_t& clock_ns);
  void StartAgain();
  [[nodiscard]] std::vector<Action> Enabled() const;
  void Do(const Action& action);
  [[nodiscard]] uint64_t Digest() const;
  [[nodiscard]] const std::string& wrong() const { return wrong_; }
  [[nodiscard]] std::string WrongAtEnd() const;
  [[nodiscard]] bool Commute(const Action& a, const Action& b) const {
    return a.kind != Kind::kPause && b.kind != Kind::kPause && !SameHost(a.rank, b.rank);
  }
  /// Answers that were looked at, of all schedules.
  [[nodiscard]] uint64_t answers() const { return answers_; }
  [[nodiscard]] static std::string Show(const Action& action);

 private:
  using Kind = Action::Kind;
  /// What concerns a rank but is no affair of its engine.
  struct Surroundings {
    bool dead = false;
    bool pump_due = false;
    std::optional<Question> question;
    std::set<std::string> asked;  ///< names
    uint64_t pumped_at = 0;       ///< its host's progress at the last pump
    uint64_t past = 0;  ///< digest of what the controller and the leader keep for themselves
  };

  [[nodiscard]] int size() const { return views_.size(); }
  [[nodiscard]] uint32_t all_ranks() const { return (1u << size()) - 1; }
  [[nodiscard]] bool Leads(int rank) const { return views_.LeaderOf(rank) == rank; }
  [[nodiscard]] bool SameHost(int a, int b) const {
    return views_.LeaderOf(a) == views_.LeaderOf(b);
  }
  [[nodiscard]] uint32_t FirstId() const {
    return shape_.few_ids > 0 ? kNamedIds - shape_.few_ids : 0;
  }

  void Act(const Action& action);
  void NotePast(const Action& action);
  void Take(int rank);
  [[nodiscard]] bool MayRun(int rank, const HostRank::Run& run) const;
  void EndRun(int rank, size_t index);
  [[nodiscard]] uint32_t BitsOfHost(int rank) const;
  [[nodiscard]] uint64_t ProgressOfHost(int rank) const;
  void Deliver(int from, int to);
  void CollectSent();
  void CheckLookups(int rank);
  void CheckAllSubmitted(int rank, const SeenDecision& seen);
  void Ask(int rank, const HostStep& step);
  void LookAtAnswer(int rank);
  void CountTold(int rank);
  void Wrong(const std::string& text) {
    if (wrong_.empty()) wrong_ = text;
  }

  const HostShape shape_;
  int64_t& clock_ns_;
  testing::MultiHostViews views_;
  std::vector<std::map<std::string, float*>> inputs_;  ///< by rank and name
  std::vector<HostRank> ranks_;
  std::vector<Surroundings> around_;                                 ///< by rank
  std::map<std::pair<int, int>, std::deque<testing::Bytes>> links_;  ///< by sender and receiver
  std::optional<AllLogs> logs_;
  /// Ranks that have begun a run, and of these those that only drain it, as bits.
  struct BegunBy {
    uint32_t ranks = 0, drain = 0;
  };
  std::map<uint64_t, BegunBy> runs_;
  int pauses_ = 0;
  uint64_t answers_ = 0;
  std::string wrong_;
};

HostModel::HostModel(HostShape shape, int64_t& clock_ns)
    : shape_(std::move(shape)),
      clock_ns_(clock_ns),
      views_(shape_.hosts, {}, shape_.grants),
      inputs_(shape_.scripts.size()) {
  for (int rank = 0; rank < size(); ++rank) {
    for (const HostStep& step : shape_.scripts[rank]) {
      float*& numbers = inputs_[rank][step.name];
      if (Submits(step.kind) && !numbers)
        numbers = static_cast<float*>(views_.arena(rank).Allocate(4 * sizeof(float)));
    }
  }
}

inline void HostModel::StartAgain() {
  views_.StartAgain();
  ranks_.clear();
  around_.assign(size(), {});
  links_.clear();
  runs_.clear();
  pauses_ = 0;
  wrong_.clear();
  std::vector<int> host_of;
  for (int rank = 0; rank < size(); ++rank) {
    host_of.push_back(Leads(rank) ? (rank > 0 ? host_of.back() + 1 : 0) : host_of.back());
    ranks_.emplace_back(
        HostRank::Place{&shape_, rank, &views_[rank], &views_.arena(rank), &inputs_[rank]});
    if (Leads(rank) && shape_.few_ids > 0) ranks_[rank].control().header().ids = FirstId();
  }
  logs_.emplace(std::move(host_of));
}

inline std::vector<HostModel::Action> HostModel::Enabled() const {
  std::vector<Action> enabled;
  const auto add = [&](Kind kind, int rank, bool may, int from = 0) {
    if (may) enabled.push_back({kind, rank, from});
  };
  for (int r = 0; r < size(); ++r) {
    const HostRank& rank = ranks_[r];
    if (around_[r].dead) continue;
    const bool outbox =
        Leads(r) && !rank.control().outbox().empty() && shape_.fault != HostFault::kForgetsLeader;
    const bool news = shape_.grants && Leads(r) && views_.controller(r).HoldsNews() &&
                      around_[r].pumped_at != ProgressOfHost(r);
    add(Kind::kPump, r, outbox || around_[r].pump_due || news);
    add(Kind::kDie, r, std::ranges::find(shape_.dies, r) != shape_.dies.end());
    add(Kind::kFinish, r, rank.MayFinish());
    for (size_t k = 0; k < rank.runs().size(); ++k)
      add(Kind::kRun, r, MayRun(r, rank.runs()[k]), static_cast<int>(k));
    if (rank.closed()) continue;
    add(Kind::kStep, r, rank.MayStep(pauses_));
    add(Kind::kAnnounce, r, rank.MayAnnounce());
    add(Kind::kSubmitAgain, r, rank.MaySubmitAgain());
    add(Kind::kTake, r, rank.MayTake());
    add(Kind::kUnblock, r, rank.MayUnblock(pauses_));
    add(Kind::kClose, r, rank.MayClose());
  }
  for (const auto& [link, messages] : links_) {
    if (messages.empty() || around_[link.second].dead) continue;
    add(Kind::kDeliver, link.second, true, link.first);
    add(Kind::kLose, link.second, around_[link.first].dead, link.first);
  }
  const auto is_late = [&](const HostRank& rank) { return rank.IsLate(pauses_); };
  add(Kind::kPause, 0,
      pauses_ < shape_.pauses || (enabled.empty() && std::ranges::any_of(ranks_, is_late)));
  return enabled;
}

inline void HostModel::Do(const Action& action) {
  NotePast(action);
  Act(action);
  CollectSent();
  CheckLookups(action.rank);
  if (const std::string& wrong = ranks_[action.rank].wrong(); !wrong.empty()) Wrong(wrong);
  for (int r = 0; r < size(); ++r) {
    if (ranks_[r].controller().Released() && !std::ranges::all_of(ranks_, &HostRank::closed))
      Wrong("a set is released while a rank is not done with it");
  }
  for (const auto& [link, messages] : links_) {
    if (!messages.empty() && ranks_[link.second].controller().Released())
      Wrong("a message is on its way to a leader that has released the set");
  }
}

inline void HostModel::Act(const Action& action) {
  HostRank& rank = ranks_[action.rank];
  switch (action.kind) {
    case Kind::kStep:
      if (const HostStep& step = rank.Step(pauses_); step.kind == HostStep::Kind::kAsk)
        Ask(action.rank, step);
      return;
    case Kind::kAnnounce:
      return rank.Announce(pauses_);
    case Kind::kSubmitAgain:
      return rank.SubmitAgain(pauses_);
    case Kind::kTake:
      return Take(action.rank);
    case Kind::kRun:
      return EndRun(action.rank, static_cast<size_t>(action.from));
    case Kind::kFinish:
      return rank.FinishFirst();
    case Kind::kPump:
      around_[action.rank].pump_due = false;
      around_[action.rank].pumped_at = ProgressOfHost(action.rank);
      CountTold(action.rank);
      return rank.Pump();
    case Kind::kUnblock:
      return rank.Unblock();
    case Kind::kClose:
      return rank.Close();
    case Kind::kDie:
      around_[action.rank].dead = true;
      return;
    case Kind::kDeliver:
      return Deliver(action.from, action.rank);
    case Kind::kLose:
      links_[{action.from, action.rank}].clear();
      return;
    case Kind::kPause:
      ++pauses_;
      clock_ns_ += kSubtreeTimeout + kMillisecond;
      for (Surroundings& each : around_) each.pump_due = !each.dead;
      return;
  }
}

// All that a leader knows, and what other ranks' controllers keep, follows from this.
inline void HostModel::NotePast(const Action& action) {
  if (action.kind == Kind::kPause || action.kind == Kind::kTake || action.kind == Kind::kFinish ||
      action.kind == Kind::kRun)
    return;
  Surroundings& around = around_[action.rank];
  const bool keeps =
      action.kind == Kind::kUnblock || around.question || shape_.pauses > 0 || pauses_ > 0;
  if (!Leads(action.rank) && !keeps) return;
  StateHash past;
  past.Mix(around.past);
  past.Mix(static_cast<uint64_t>(action.kind) << 32 | static_cast<uint64_t>(action.from));
  if (action.kind == Kind::kDeliver) {
    for (const std::byte byte : links_[{action.from, action.rank}].front())
      past.Mix(static_cast<uint64_t>(byte));
  }
  past.Mix(DigestOf(ranks_[action.rank].control(), FirstId(), shape_.grants));
  past.Mix(ranks_[action.rank].step());
  around.past = past.value();
}

// Messages.

inline void HostModel::CollectSent() {
  for (int rank = 0; rank < size(); ++rank) {
    for (ControlMessage& message : std::exchange(views_.tap(rank).sent, {})) {
      if (!Leads(rank) || !Leads(message.source)) Wrong("a message that is not between leaders");
      links_[{rank, message.source}].push_back(std::move(message.bytes));
    }
  }
}

inline void HostModel::Deliver(int from, int to) {
  std::deque<testing::Bytes>& link = links_[{from, to}];
  const bool more = link.size() > 1;
  const bool overtaken = more && KindOf(link[0]) == MultiHostMessage::kReady &&
                         KindOf(link[1]) == MultiHostMessage::kJoined;
  if (shape_.fault == HostFault::kReordersLink && more) std::swap(link.front(), link.back());
  if (shape_.fault == HostFault::kJoinOvertakes && overtaken) std::swap(link[0], link[1]);
  const testing::Bytes message = std::move(link.front());
  link.pop_front();
  ranks_[to].Must(views_.Give(to, from, message));
  if (shape_.fault == HostFault::kDoubles && KindOf(message) == MultiHostMessage::kReady)
    ranks_[to].Must(views_.Give(to, from, message));
}

// Decisions.

inline void HostModel::Take(int rank) {
  std::optional<Decision> decision = ranks_[rank].Take();
  LookAtAnswer(rank);
  if (!decision) return;
  if (decision->run != 0) {
    const SeenDecision begun = ranks_[rank].Begin(*decision);
    if (const std::string wrong = logs_->TakeHere(rank, begun); !wrong.empty()) Wrong(wrong);
    BegunBy& by = runs_[decision->run];
    const bool drains = decision->kind == Decision::Kind::kDrain;
    if (!drains || shape_.fault != HostFault::kDrainsNothing) by.ranks |= 1u << rank;
    if (drains) by.drain |= 1u << rank;
    return;
  }
  const SeenDecision seen = ranks_[rank].Account(*decision);
  CheckAllSubmitted(rank, seen);
  if (const std::string wrong = logs_->Take(rank, seen); !wrong.empty()) Wrong(wrong);
  ranks_[rank].Finish(std::move(*decision));
}

// A rank may have results once one of each host has begun the run, and it gives them, or takes
// note that it is dropped.
inline bool HostModel::MayRun(int rank, const HostRank::Run& run) const {
  if (ranks_[rank].IsHeld(run)) return false;
  const uint32_t begun = runs_.at(run.decision.run).ranks;
  for (int other = 0; other < size(); ++other) {
    if (Leads(other) && (begun & BitsOfHost(other)) == 0) return false;
  }
  return true;
}

inline void HostModel::EndRun(int rank, size_t index) {
  const HostRank::Run run = ranks_[rank].runs()[index];
  if (!ranks_[rank].EndRun(index)) return;
  if (runs_[run.decision.run].drain != 0) Wrong("a rank has results of a round that is dropped");
  if (const std::string wrong = logs_->TakeRound(rank, run.name, run.decision.run); !wrong.empty())
    Wrong(wrong);
  SeenDecision seen;
  seen.names = {run.name};
  CheckAllSubmitted(rank, seen);
}

inline uint64_t HostModel::ProgressOfHost(int rank) const {
  uint64_t sum = 1;
  const SetSegment& control = ranks_[rank].control();
  for (uint32_t r = 0; r < control.ranks(); ++r) sum += control.cursor(r).words;
  return sum;
}

inline uint32_t HostModel::BitsOfHost(int rank) const {
  uint32_t bits = 0;
  for (int other = 0; other < size(); ++other) {
    if (SameHost(rank, other)) bits |= 1u << other;
  }
  return bits;
}

// What runs, and is not partial, needs the input of each rank, dead ones included.
inline void HostModel::CheckAllSubmitted(int rank, const SeenDecision& seen) {
  if (seen.kind != Decision::Kind::kRun || seen.partial) return;
  for (const std::string& name : seen.names) {
    const int round = ranks_[rank].RoundsOf(name) - 1;
    for (int other = 0; other < size(); ++other) {
      if (!ranks_[other].closed() && !ranks_[other].HasSubmitted(name, round))
        Wrong(name + " runs, which rank " + std::to_string(other) + " has not submitted");
    }
  }
}

inline void HostModel::CheckLookups(int rank) {
  for (const auto& [name, id] : ranks_[rank].TakeLookups()) {
    if (ranks_[rank].controller().Ended()) continue;  // ids mean nothing any more
    for (int other = 0; other < size(); ++other) {
      if (!SameHost(rank, other)) continue;
      for (const HostRank::Call& held : ranks_[other].calls()) {
        if (other != rank && held.key.id == id && held.name != name && held.announced)
          Wrong("the id of an undecided call goes to another name");
      }
    }
  }
}

// States and ends.

inline uint64_t HostModel::Digest() const {
  StateHash hash;
  hash.Mix(static_cast<uint64_t>(pauses_));
  for (int rank = 0; rank < size(); ++rank) {
    const Surroundings& around = around_[rank];
    hash.Mix(around.past);
    hash.Mix((around.dead ? 1 : 0) | (around.pump_due ? 2 : 0));
    hash.Mix(around.pumped_at);
    if (Leads(rank)) hash.Mix(DigestOf(ranks_[rank].control(), FirstId(), shape_.grants));
    ranks_[rank].MixInto(hash);
    for (const auto& [link, messages] : links_) {
      // Which messages they are follows from their senders' past.
      if (link.second == rank) hash.Mix(static_cast<uint64_t>(link.first) << 32 | messages.size());
    }
  }
  return hash.value();
}

inline std::string HostModel::WrongAtEnd() const {
  const bool death = std::ranges::any_of(around_, &Surroundings::dead);
  bool ends = false;
  for (int r = 0; r < size(); ++r) {
    const HostRank& rank = ranks_[r];
    for (const HostStep& step : shape_.scripts[r]) ends = ends || static_cast<bool>(step.end);
    if (around_[r].dead || rank.through()) continue;
    if (death && rank.WaitsForOthers()) continue;
    std::string text = "rank " + std::to_string(r) + " waits for ever";
    for (const HostRank::Call& call : rank.calls())
      text += ", for " + call.name + (call.begun ? ", which it has begun" : "");
    return text;
  }
  if (death) return "";
  for (int r = 0; r < size(); ++r) {
    const HostRank& rank = ranks_[r];
    const std::string name = "rank " + std::to_string(r);
    if (!logs_->HasAll(r)) return name + " misses decisions";
    if (!rank.control().outbox().empty()) return name + "'s leader leaves something in the outbox";
    if (rank.controller().HoldsNews()) return name + " keeps news";
    if (ends && !rank.closed()) return name + " does not hear of the set's end";
    if (ends && !rank.controller().Released()) return name + " does not hear of the release";
  }
  return "";
}

inline std::string HostModel::Show(const Action& action) {
  static constexpr const char* kNames[] = {
      "steps", "announces", "submits again", "takes", "ends a run", "carries out",
      "pumps", "unblocks",  "closes",        "dies",  "hears from", "loses what is sent by",
      "pauses"};
  std::string text =
      action.kind == Kind::kPause ? "every rank" : "rank " + std::to_string(action.rank);
  text += std::string(" ") + kNames[static_cast<size_t>(action.kind)];
  if (action.kind == Kind::kDeliver || action.kind == Kind::kLose)
    text += " rank " + std::to_string(action.from);
  return text;
}

}  // namespace horoacc::model

#include "model/host_questions.h"
