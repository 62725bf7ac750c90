#pragma once
// The ranks of a process set on several hosts, moved by hand: each is production's controller and,
// on the lowest of its host, production's leader; in the place of the engine stands what is here.
// For model/replay_search.h.
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "model/host_invariants.h"
#include "model/host_script.h"
#include "support/multi_host_views.h"
#include "support/still_clock.h"

namespace horoacc::model {

class HostModel {
 public:
  struct Action {
    enum class Kind : uint8_t {
      kStep,      ///< rank `who` goes on in its script
      kAnnounce,  ///< the call whose row it has written
      kAgain,     ///< submits again what was given up
      kTake,      ///< the next decision, and finishes it
      kFinish,    ///< with HostShape::late_finish
      kPump,
      kUnblock,
      kClose,  ///< takes note of the set's end
      kDie,
      kDeliver,  ///< the next message of `from` to `who`
      kLose,     ///< all messages of `from`, which is dead, to `who`
      kPause,    ///< of all ranks
    };
    Kind kind = Kind::kStep;
    int who = 0;
    int from = 0;
    bool operator==(const Action&) const = default;
  };

  explicit HostModel(HostShape shape);
  void StartAgain();
  [[nodiscard]] std::vector<Action> Enabled() const;
  void Do(const Action& action);
  [[nodiscard]] uint64_t Digest() const;
  [[nodiscard]] const std::string& wrong() const { return wrong_; }
  [[nodiscard]] std::string WrongAtEnd() const;
  [[nodiscard]] bool Commute(const Action& a, const Action& b) const {
    return a.kind != Action::Kind::kPause && b.kind != Action::Kind::kPause &&
           views_.LeaderOf(a.who) != views_.LeaderOf(b.who);
  }
  /// Answers that were looked at, of all schedules.
  [[nodiscard]] uint64_t answers() const { return answers_; }
  [[nodiscard]] static std::string Show(const Action& action);

 private:
  using Kind = Action::Kind;
  /// Who knows at least that the rank waits for a call.
  enum class Told : uint8_t { kNobody, kHost, kLeader, kRoot };
  /// A call of a rank that it has not seen decided.
  struct Call {
    std::string name;
    TensorKey key{};
    uint64_t number = 0;      ///< of an unnamed one
    bool announced = false;   ///< else only its row is written
    Told told = Told::kNobody;
    int pauses = 0;           ///< there had been when `told` was set
  };
  struct Rank {
    size_t step = 0;
    std::vector<Call> calls;
    std::deque<std::string> again;
    std::deque<Decision> unfinished;
    std::map<std::string, SetSegment::NamedId> ids;
    std::map<std::string, int> rounds;           ///< times that a name has run
    std::map<uint32_t, std::pair<uint64_t, uint32_t>> split_said;
    std::optional<Question> question;
    uint64_t unnamed = 0;
    uint32_t waits = 0;       ///< sync rounds
    size_t taken = 0;         ///< decisions
    int joins = 0, joins_over = 0;
    uint64_t stuck_at = 0;    ///< the host's progress when there was no id for a name
    bool joined = false, closed = false, dead = false, pump_due = false, wait_begun = false;
    uint64_t past = 0;        ///< digest of what its controller keeps for itself
  };

  [[nodiscard]] HostGroup& group(int rank) const {
    return static_cast<HostGroup&>(views_.controller(rank));
  }
  [[nodiscard]] SetSegment& control(int rank) const { return *views_[rank].control; }
  [[nodiscard]] bool Leads(int rank) const { return views_.LeaderOf(rank) == rank; }
  [[nodiscard]] bool HasMore(int rank) const {
    return control(rank).header().log_words.load() != group(rank).log().taken();
  }
  [[nodiscard]] const Call* Find(int rank, const std::string& name) const;
  [[nodiscard]] bool IsWriting(int rank) const;
  [[nodiscard]] bool MayStep(int rank) const;
  [[nodiscard]] bool MayUnblock(int rank) const;
  [[nodiscard]] std::map<uint32_t, uint32_t> PartsOfBuckets(int rank) const;

  void Step(int rank);
  void Submit(int rank, const std::string& name);
  [[nodiscard]] bool LookUp(int rank, Call& call, bool afresh);
  void WriteRow(int rank, Call& call);
  void Announce(int rank);
  void Take(int rank);
  void Account(int rank, const Decision& decision);
  void Finish(int rank, const Decision& decision);
  void Close(int rank);
  void Deliver(int from, int to);
  void CollectSent();
  void Ask(int rank, const Call* call);
  void CountTold(int rank);
  void LookAtAnswer(int rank);
  void Must(const Status& status);
  void Wrong(std::string what) {
    if (wrong_.empty()) wrong_ = std::move(what);
  }

  [[nodiscard]] static float InputOf(int rank, int round);
  [[nodiscard]] uint64_t ProgressOfHost(int rank) const;
  [[nodiscard]] uint64_t DigestOfSegment(int host_rank) const;

  const HostShape shape_;
  testing::MultiHostViews views_;
  std::vector<std::map<std::string, float*>> numbers_;  ///< by rank and name: the calls' inputs
  std::vector<Rank> ranks_;
  std::map<std::pair<int, int>, std::deque<testing::Bytes>> links_;  ///< by sender and receiver
  std::vector<uint64_t> leaders_past_;  ///< by rank: all that has happened to the leader
  OneLog log_;
  int pauses_ = 0;
  uint64_t answers_ = 0;
  std::string wrong_;
};

}  // namespace horoacc::model
