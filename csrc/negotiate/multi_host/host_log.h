#pragma once
// One host's side of a leader: what the ranks of the host have submitted becomes news for the
// tree, and what the root decides becomes entries of the host's log.
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "negotiate/control_segment/host_group.h"
#include "negotiate/multi_host/eager.h"
#include "negotiate/multi_host/granted_rounds.h"
#include "negotiate/multi_host/multi_host_messages.h"
#include "negotiate/multi_host/multi_host_root.h"

namespace horoacc {

/// Memory that all ranks of the host see: the leader's.
struct NoteMemory {
  std::function<std::byte*(size_t bytes)> allocate;  ///< null: there is no more
  std::function<void(void*)> free;
};

class HostLog {
 public:
  /// `members`: of the set, by index on this host.
  HostLog(HostGroup& group, SetSegment& control, const SetContext& context,
          std::vector<uint32_t> members, EagerRule eager, NoteMemory memory);
  ~HostLog();
  HostLog(const HostLog&) = delete;
  HostLog& operator=(const HostLog&) = delete;

  /// The ranks of this host that have submitted a call, and of which no news was taken before.
  struct News {
    CallName call;
    ReadySet ready_set;
    RootPlace place;  ///< if the set's lowest rank is on this host
  };
  [[nodiscard]] std::optional<News> NewsOf(TensorKey key, const CallNumbers& numbers);
  /// The call, if ranks of this host have submitted it and it is undecided.
  [[nodiscard]] std::optional<CallName> CallOf(TensorKey key) const;

  /// Takes a decision of the root, in their order, and numbers the calls that run.
  Status Take(MultiHostDecision verdict, CallNumbers& numbers);
  /// A call runs without the root (direct_exchange.h, grants.h): `decision` lacks its id.
  Status TakeUnordered(const CallName& call, Decision decision);
  /// Other hosts have begun a round of it that this one has not.
  void TakeDrain(const Grants::Grant& grant);
  /// See GrantedRounds::Hold. False: the round was not in the log yet, and does not begin.
  [[nodiscard]] bool Hold(const CallName& call);
  [[nodiscard]] GrantedRounds& rounds() { return rounds_; }
  /// A rank has submitted the call with an error.
  [[nodiscard]] bool IsRefused(TensorKey key) const;

  /// No decision follows.
  void TakeEnd(SetEnd end) { untold_.push_back({.end = end}); }
  void TakeNews(AttendanceNews news) { untold_.push_back({.news = std::move(news)}); }
  /// Puts what was taken into the log, as far as there is room. `drain` is called to take out all
  /// that lies in the outbox, before a call is ended: it may tell of that call.
  Status Publish(const std::function<Status()>& drain);
  /// Is there anything left to publish?
  [[nodiscard]] bool waits() const { return !untold_.empty(); }
  /// Decisions that are in the log.
  [[nodiscard]] uint64_t published() const { return control_.header().decided; }
  /// A bucket has these members now.
  Status SetBucket(const BucketMembers& bucket);

 private:
  /// A call of which news was taken, and that is not decided.
  struct Known {
    TensorKey key;
    std::shared_ptr<const Request> request;
    std::vector<bool> told;  ///< by index: its news was taken
    uint64_t eager = 0;      ///< bytes of inputs that went with the news
  };
  /// One of: a decision, the set's end, an answer.
  struct Untold {
    std::optional<Decision> decision{};
    bool ordered = true;            ///< it is one of the root's
    std::vector<TensorKey> keys{};  ///< of `decision`, unless it is an error
    /// Of an error: which of them ranks submit changes until then. Of one that is not ordered: it.
    std::vector<CallName> calls{};
    SetEnd end{};
    std::optional<AttendanceNews> news{};
  };

  [[nodiscard]] bool IsCounted(uint32_t index, TensorKey key, bool closed) const;
  [[nodiscard]] CallName NameOf(TensorKey key, uint32_t index) const;
  void AddInputs(News& news, std::span<const uint32_t> told, Known& known);
  // Under the set's lock.
  Status PublishFirst();
  void CloseCalls(const std::vector<CallName>& calls, Untold& entry);
  Result<LogNote> Keep(std::span<const std::byte> note);
  void Forget(std::map<CallName, Known>::iterator call);
  void FreeNotes();

  HostGroup& group_;
  SetSegment& control_;
  const SetContext& context_;
  const std::vector<uint32_t> members_;
  const EagerRule eager_rule_;
  const NoteMemory memory_;
  std::map<CallName, Known> known_;
  uint64_t eager_ = 0;  ///< bytes of inputs of known_ that went with news
  std::deque<Untold> untold_;
  std::map<uint32_t, uint64_t> taken_;  ///< calls of `untold_` that run: generations, by id
  std::deque<std::pair<uint64_t, std::byte*>> notes_;  ///< until the log is finished up to there
  ToldBuckets buckets_;
  GrantedRounds rounds_;
};

}  // namespace horoacc
