#pragma once
// The control tree between hosts (negotiate/multi_host: multi_host_controller.cc,
// subtree_aggregator.cc, multi_host_root.cc): news of what ranks have submitted climbs a tree and
// is held where branches meet, the root decides, and decisions come down. Two tensors form one
// bucket and are submitted over and over, in any order. Ranks give calls up at any time, as after a
// timeout, and submit again what has failed.
#include "model/explore.h"

namespace horoacc::model {

enum class TreeFault {
  kNone,
  kLateNews,       ///< the root counts news that its rejection of the call has passed on the way
  kLateNewsBelow,  ///< the same where branches meet
  kKeptNews,       ///< a branch keeps its news of a call that was rejected
  kNobodySplits,   ///< nobody says that it waits with a part of a bucket
  kOneSplit,       ///< that is passed on once only, and not again for later decisions
  kEarlyDecision,  ///< the root does not wait for its own rank
};

template <uint32_t kRanks>
class TreeModel {
 public:
  static constexpr uint8_t kCalls = 2, kBoth = 3;
  static constexpr uint32_t kRoom = 8;  ///< messages of a link; more are told as an error

  enum Kind : uint8_t { kReady, kSplit, kReject, kRun, kError };
  struct Message {
    uint8_t kind = 0, call = 0, mask = 0, seen = 0;
  };
  struct Link {
    uint8_t count = 0;
    Message message[kRoom] = {};
  };
  struct Rank {
    uint8_t own = 0;      ///< calls that it has submitted and that are not decided
    uint8_t decided = 0;  ///< decisions that it has taken
    uint8_t ran[kCalls] = {};
    uint8_t split_said = 0;         ///< one more than the decisions seen by whom it was sent up for
    uint8_t held[kCalls] = {};      ///< members whose news waits for the rest of the branch
    uint8_t sent[kCalls] = {};      ///< members whose news went before
    uint8_t open[kCalls] = {};      ///< waits no more
    uint8_t rejected[kCalls] = {};  ///< decisions there were then
  };
  struct Root {
    uint8_t ready[kCalls] = {};  ///< members
    uint8_t rejected[kCalls] = {}, last[kCalls] = {};
    uint8_t members = kBoth, waiting = 0, ran = 0, split = 0;  ///< the bucket's calls
    uint8_t give_up = 0;                                       ///< calls that may still be
  };
  struct State {
    Link up[kRanks], down[kRanks];  ///< from a rank to its parent, and back
    Rank rank[kRanks];
    Root root;
  };
  struct Shape {
    uint8_t parent[kRanks] = {};
    uint8_t rounds = 1;   ///< times that each tensor is reduced
    uint8_t give_up = 0;  ///< calls that are given up
    bool waits = false;   ///< ranks wait for the first tensor before they submit the second
  };

  TreeModel(const Shape& shape, TreeFault fault) : shape_(shape), fault_(fault) {
    for (uint32_t r = kRanks; r-- > 0;) {
      branch_[r] |= static_cast<uint8_t>(1u << r);
      if (r > 0) branch_[shape.parent[r]] |= branch_[r];
    }
  }
  [[nodiscard]] State initial() const {
    State state{};
    state.root.give_up = shape_.give_up;
    return state;
  }
  [[nodiscard]] uint32_t processes() const { return kRanks * kActions; }
  [[nodiscard]] bool Done(const State& s) const {
    for (const Rank& rank : s.rank) {
      for (const uint8_t ran : rank.ran) {
        if (ran < shape_.rounds) return false;
      }
    }
    return true;
  }

  /// One act of one rank: it holds its lock from a message, or a call, to what it sends.
  Outcome Step(State& s, uint32_t process, const char** wrong) const {
    const auto r = static_cast<uint8_t>(process / kActions);
    const uint32_t act = process % kActions;
    const auto call = static_cast<uint8_t>(act % kCalls);
    Run run{s, wrong};
    Rank& me = s.rank[r];
    const bool own = (me.own >> call & 1) != 0;
    switch (act) {
      case 0:
      case 1:
        if (!MaySubmit(me, call)) return Outcome::kBlocked;
        me.own |= static_cast<uint8_t>(1u << call);
        Arrive(run, r, {kReady, call, static_cast<uint8_t>(1u << r), me.decided});
        return Outcome::kMoved;
      case 2:
      case 3:
        if (!own || s.root.give_up == 0) return Outcome::kBlocked;
        --s.root.give_up;
        GiveUp(run, r, call);
        return Outcome::kMoved;
      case 4:
      case 5:  // its delay for the rest of the branch is over
        if (r == 0 || me.held[call] == 0 || me.open[call] != 0) return Outcome::kBlocked;
        Flush(run, r, call);
        return Outcome::kMoved;
      case 6:  // it has a part of a bucket, and nothing left to do but wait
        if (fault_ == TreeFault::kNobodySplits || me.own == 0 || me.own == kBoth ||
            MaySubmit(me, 0) || MaySubmit(me, 1) || me.split_said > me.decided) {
          return Outcome::kBlocked;
        }
        Split(run, r, static_cast<uint8_t>(me.own >> 1), me.decided);
        return Outcome::kMoved;
      case 7:
        if (s.down[r].count == 0) return Outcome::kBlocked;
        TakeAndPass(run, r, Pop(s.down[r]));
        return Outcome::kMoved;
      default: {  // from the child with that number
        const uint32_t child = act - 8 + 1;
        if (child >= kRanks || shape_.parent[child] != r || s.up[child].count == 0) {
          return Outcome::kBlocked;
        }
        const Message message = Pop(s.up[child]);
        if (message.kind == kReady) Arrive(run, r, message);
        if (message.kind == kSplit) Split(run, r, message.call, message.seen);
        if (message.kind == kReject) GiveUp(run, r, message.call);
        return Outcome::kMoved;
      }
    }
  }

 private:
  static constexpr uint32_t kActions = 8 + kRanks - 1;
  struct Run {
    State& s;
    const char** wrong;
  };

  [[nodiscard]] bool MaySubmit(const Rank& me, uint8_t call) const {
    if ((me.own >> call & 1) != 0 || me.ran[call] == shape_.rounds) return false;
    return !shape_.waits || me.ran[0] == me.ran[1] + call;
  }

  static Message Pop(Link& link) {
    const Message first = link.message[0];
    for (uint32_t k = 1; k < link.count; ++k) link.message[k - 1] = link.message[k];
    link.message[--link.count] = {};
    return first;
  }
  static void Send(const Run& run, Link& link, const Message& message) {
    if (link.count == kRoom) {
      *run.wrong = "the model has too little room";
      return;
    }
    link.message[link.count++] = message;
  }

  void SendNews(const Run& run, uint8_t r, uint8_t call) const {
    Rank& me = run.s.rank[r];
    if (me.held[call] != 0) Send(run, run.s.up[r], {kReady, call, me.held[call], me.decided});
    me.sent[call] |= me.held[call];
    me.held[call] = 0;
  }

  static void Forget(Rank& me, uint8_t call) { me.held[call] = me.sent[call] = me.open[call] = 0; }

  void Flush(const Run& run, uint8_t r, uint8_t call) const {
    run.s.rank[r].open[call] = 1;
    SendNews(run, r, call);
  }

  void Arrive(const Run& run, uint8_t r, const Message& news) const {
    const uint8_t call = news.call;
    if (r == 0) return ReadyAtRoot(run, news);
    Rank& me = run.s.rank[r];
    if (fault_ != TreeFault::kLateNewsBelow && news.seen < me.rejected[call]) return;
    if (((me.held[call] | me.sent[call]) & news.mask) != 0) *run.wrong = "a call is told of twice";
    me.held[call] |= news.mask;
    const bool complete = (me.held[call] | me.sent[call]) == branch_[r];
    if (complete || me.open[call] != 0) SendNews(run, r, call);
    if (complete) Forget(me, call);
  }

  void GiveUp(const Run& run, uint8_t r, uint8_t call) const {
    if (r == 0) return RejectAtRoot(run, call);
    Rank& me = run.s.rank[r];
    if ((me.held[call] | me.sent[call]) != 0) Flush(run, r, call);
    Send(run, run.s.up[r], {kReject, call, 0, 0});
  }

  void Split(const Run& run, uint8_t r, uint8_t call, uint8_t seen) const {
    Rank& me = run.s.rank[r];
    const bool said = fault_ == TreeFault::kOneSplit ? me.split_said > 0 : seen < me.split_said;
    if (said) return;
    me.split_said = static_cast<uint8_t>(seen + 1);
    if (r != 0) return Send(run, run.s.up[r], {kSplit, call, 0, seen});
    Root& root = run.s.root;
    if ((root.members >> call & 1) == 0 || seen < root.last[call]) return;
    if (root.waiting != 0 || root.split == 0) SplitBucket(run);
  }

  // The root's: it decides, and takes its decisions at once.
  void ReadyAtRoot(const Run& run, const Message& news) const {
    Root& root = run.s.root;
    const uint8_t call = news.call;
    if (fault_ != TreeFault::kLateNews && news.seen < root.rejected[call]) return;
    root.ready[call] |= news.mask;
    const uint8_t wanted = fault_ == TreeFault::kEarlyDecision ? branch_[0] & ~1 : branch_[0];
    if ((root.ready[call] & wanted) != wanted) return;
    root.ready[call] = root.rejected[call] = 0;
    const auto one = static_cast<uint8_t>(1u << call);
    if ((root.members & one) == 0) return Emit(run, {kRun, 0, one, 0});
    if ((root.ran & one) != 0) DropMissing(root);
    if (root.split != 0) {
      root.ran |= one;
      CloseRound(root);
      return Emit(run, {kRun, 0, one, 0});
    }
    root.waiting |= one;
    if (root.waiting == root.members) SplitBucket(run);
  }

  static void CloseRound(Root& root) {
    if (root.ran == root.members) root.ran = root.split = 0;
  }

  // A member comes a second time in a round: the bucket goes on without those that have not come.
  static void DropMissing(Root& root) {
    root.members = root.ran;
    CloseRound(root);
  }

  void SplitBucket(const Run& run) const {
    Root& root = run.s.root;
    const uint8_t ready = root.waiting;
    root.ran |= ready;
    root.waiting = 0;
    root.split = 1;
    CloseRound(root);
    if (ready != 0) Emit(run, {kRun, 0, ready, 0});
  }

  void RejectAtRoot(const Run& run, uint8_t call) const {
    Root& root = run.s.root;
    if (root.ready[call] == 0) return;  // it has become ready meanwhile
    root.ready[call] = 0;
    Emit(run, {kError, call, 0, 0});
    root.rejected[call] = root.last[call] = run.s.rank[0].decided;
    const auto one = static_cast<uint8_t>(1u << call);
    if ((root.members & one) == 0) return;
    if ((root.ran & one) != 0) DropMissing(root);
    root.ran |= one;
    SplitBucket(run);
  }

  void Emit(const Run& run, const Message& decision) const {
    for (uint8_t call = 0; call < kCalls; ++call) {
      const bool here = decision.kind == kRun && (decision.mask >> call & 1) != 0;
      if (here) run.s.root.last[call] = static_cast<uint8_t>(run.s.rank[0].decided + 1);
    }
    TakeAndPass(run, 0, decision);
  }

  void TakeAndPass(const Run& run, uint8_t r, const Message& decision) const {
    for (uint32_t child = 1; child < kRanks; ++child) {
      if (shape_.parent[child] == r) Send(run, run.s.down[child], decision);
    }
    Rank& me = run.s.rank[r];
    ++me.decided;
    if (decision.kind == kError) {
      me.own &= static_cast<uint8_t>(~(1u << decision.call));
      if (r == 0) return;
      if (fault_ != TreeFault::kKeptNews) Forget(me, decision.call);
      me.rejected[decision.call] = me.decided;
      return;
    }
    if ((me.own & decision.mask) != decision.mask) *run.wrong = "runs what was not submitted";
    me.own &= static_cast<uint8_t>(~decision.mask);
    for (uint8_t call = 0; call < kCalls; ++call) {
      if ((decision.mask >> call & 1) == 0) continue;
      ++me.ran[call];
      me.rejected[call] = 0;
    }
  }

  const Shape shape_;
  const TreeFault fault_;
  uint8_t branch_[kRanks] = {};
};

}  // namespace horoacc::model
