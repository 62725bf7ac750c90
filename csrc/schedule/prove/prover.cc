#include "schedule/prove/prover.h"

#include <deque>
#include <map>
#include <string>

#include "schedule/prove/memory.h"
#include "schedule/prove/network.h"

namespace horoacc::schedule {
namespace {

bool NamesOneTwice(const Step& step, uint32_t from, uint32_t to) {
  for (uint32_t k = from; k < to; ++k) {
    for (uint32_t other = from; other < k; ++other) {
      if (step.peer[other] == step.peer[k]) return true;
    }
  }
  return false;
}

// Does the step have the operands that its operation speaks of?
const char* CheckForm(const Step& step) {
  const bool own = step.op != Op::kRecv && step.op != Op::kRecvCopySend;
  const bool receives = step.op != Op::kSend && step.op != Op::kCopy;
  const bool stores = step.op != Op::kSend && step.op != Op::kRecvReduceSend;
  const bool sends = step.op != Op::kCopy && step.op != Op::kRecv && step.op != Op::kRecvReduce;
  if (own != (step.src != Buffer::kNone)) return "has a wrong source";
  if (stores != (step.dst != Buffer::kNone)) return "has a wrong destination";
  if (!receives && Receives(step)) return "receives";
  if (!sends && Sends(step)) return "sends";
  if (!own && !Receives(step)) return "has nothing to receive from";
  if (!own && (step.flags & kPrescaleOwn)) return "scales what it does not have";
  if (!receives && (step.flags & kPrescaleReceived)) return "scales what it does not receive";
  if ((!own || step.op == Op::kSend) && (step.flags & kPostscale)) return "finishes no sum";
  const bool many = step.receives > 1 || (step.flags & kReceiveRange) != 0;
  if (step.op == Op::kRecvCopySend && many) return "copies from many";
  if (step.receives + step.sends > kMaxPeers) return "has too many peers";
  if (NamesOneTwice(step, 0, step.receives) ||
      NamesOneTwice(step, step.receives, step.receives + step.sends)) {
    return "names a peer twice";
  }
  return nullptr;
}

class Prover {
 public:
  Prover(const Schedule& schedule, const Rules& rules)
      : schedule_(schedule),
        facts_(schedule.facts()),
        rules_(rules),
        memory_(schedule, rules, expressions_),
        everybody_(~uint64_t{0} >> (64 - facts_.ranks)),
        network_(facts_.ranks) {
    actors_.resize(static_cast<size_t>(facts_.ranks) * facts_.lanes);
    turns_.resize(static_cast<size_t>(facts_.ranks) * rules.windows);
    for (Turn& turn : turns_) turn.over.resize(actors_.size());
    lane_ends_.resize(actors_.size() * rules.windows);
    for (uint32_t a = 0; a < actors_.size(); ++a) {
      actors_[a].rank = a / facts_.lanes;
      actors_[a].lane = a % facts_.lanes;
      actors_[a].clock.resize(actors_.size());
      Queue(a);
    }
  }

  Result<Proof> Run() {
    while (!queue_.empty()) {
      const uint32_t a = queue_.front();
      queue_.pop_front();
      actors_[a].queued = false;
      while (Advance(a)) {
      }
      if (!wrong_.empty()) return MakeError(ErrorKind::kInvalid, wrong_);
    }
    for (const Actor& actor : actors_) {
      if (actor.window < rules_.windows) return MakeError(ErrorKind::kInvalid, Stuck(actor));
    }
    for (const Link& link : network_.links()) {
      if (link.messages.empty()) {
        proof_.links.push_back(link.use);
        continue;
      }
      return MakeError(ErrorKind::kInvalid, "a message from rank " + std::to_string(link.use.from) +
                                                " to rank " + std::to_string(link.use.to) +
                                                " is never received");
    }
    for (uint32_t window = 0; window < rules_.windows; ++window) {
      if (std::string wrong = memory_.CheckOutputs(window); !wrong.empty()) {
        return MakeError(ErrorKind::kInvalid, std::move(wrong));
      }
    }
    return std::move(proof_);
  }

 private:
  // --- links

  bool HasMessages(const Actor& actor, const Step& step) {
    bool all = true;
    ForEachSource(step, actor.rank, [&](uint32_t peer) {
      if (!CheckPeer(actor, peer)) return;
      Link* link = network_.Find(peer, actor.rank, step.channel);
      if (!Network::Claim(link->receiver, Index(actor)))
        Fail(actor, "shares a link with another lane");
      all = all && !link->messages.empty();
    });
    return all && wrong_.empty();
  }

  bool HasRoom(const Actor& actor, const Step& step) {
    bool all = true;
    ForEachTarget(step, actor.rank, [&](uint32_t peer) {
      if (!CheckPeer(actor, peer)) return;
      Link* link = network_.Find(actor.rank, peer, step.channel);
      if (!Network::Claim(link->sender, Index(actor)))
        Fail(actor, "shares a link with another lane");
      all = all && link->messages.size() < rules_.depth;
    });
    return all && wrong_.empty();
  }

  bool CheckPeer(const Actor& actor, uint32_t peer) {
    if (peer < facts_.ranks && peer != actor.rank) return true;
    Fail(actor, "has a peer that is no other rank");
    return false;
  }

  // --- running

  bool Advance(uint32_t a) {
    Actor& actor = actors_[a];
    if (actor.window == rules_.windows || !MayBegin(actor)) return false;
    if (actor.k == schedule_.steps(actor.rank, actor.lane)) return EndWindow(a);
    const Step step = schedule_.step(actor.rank, actor.lane, actor.k);
    if (!actor.received) {
      if (const char* wrong = CheckForm(step)) {
        Fail(actor, wrong);
        return false;
      }
      if (!Awaited(actor, step) || !HasMessages(actor, step)) return false;
      if (rules_.fused && !HasRoom(actor, step)) return false;
      FirstHalf(a, step);
      actor.received = true;
    }
    if (!wrong_.empty() || !HasRoom(actor, step)) return false;
    Post(actor, step);
    actor.received = false;
    ++actor.k;
    ++proof_.steps;
    return wrong_.empty();
  }

  // The rank's memory for this window is that of an earlier one.
  bool MayBegin(Actor& actor) {
    if (actor.k > 0 || actor.received || actor.window < rules_.places) return true;
    const Turn& turn = TurnOf(actor.rank, actor.window - rules_.places);
    if (turn.lanes_ended < facts_.lanes) return false;
    if (rules_.drains && turn.untaken > 0) return false;
    Join(actor.clock, turn.over);
    return true;
  }

  bool Awaited(Actor& actor, const Step& step) {
    for (uint32_t lane = 0; lane < facts_.lanes; ++lane) {
      if ((step.after >> lane & 1) == 0) continue;
      const Actor& other = actors_[actor.rank * facts_.lanes + lane];
      if (other.window <= actor.window) return false;
      Join(actor.clock, lane_ends_[Index(other) * rules_.windows + actor.window]);
      actor.chain = std::max(actor.chain, other.chain);
    }
    return true;
  }

  bool EndWindow(uint32_t a) {
    Actor& actor = actors_[a];
    Turn& turn = TurnOf(actor.rank, actor.window);
    ++turn.lanes_ended;
    Join(turn.over, actor.clock);
    lane_ends_[a * rules_.windows + actor.window] = actor.clock;
    ++actor.window;
    actor.k = 0;
    QueueRank(actor.rank);
    return true;
  }

  // Receives, combines and stores.
  void FirstHalf(uint32_t a, const Step& step) {
    Actor& actor = actors_[a];
    ++actor.clock[a];
    std::vector<std::pair<uint32_t, Message>> taken;
    ForEachSource(step, actor.rank,
                  [&](uint32_t peer) { taken.emplace_back(peer, Take(actor, step, peer)); });
    if (!wrong_.empty()) return;
    const bool gathers = step.op == Op::kRecv && (step.flags & kReceiveRange) != 0;
    const char* wrong = nullptr;
    const Extent own =
        memory_.Find(actor.rank, actor.window, step.src, step.src_chunk, step.count, &wrong);
    if (wrong) return Fail(actor, wrong);
    actor.values.clear();
    for (uint32_t k = 0; k < own.count && step.src != Buffer::kNone; ++k) {
      actor.values.push_back(ReadOwn(actor, step, own.cell(k)));
    }
    actor.source = step.op == Op::kSend ? own : Extent{};
    const bool reduces = step.src != Buffer::kNone && !taken.empty();
    if (reduces && facts_.in_rank_order) NoteOrder(actor, taken);
    for (auto& [peer, message] : taken) {
      if (gathers) {
        Store(actor, step, step.dst_chunk + (peer - step.peer[0]) * step.count, message.values);
      } else if (step.src == Buffer::kNone) {
        actor.values = std::move(message.values);
      } else {
        for (uint32_t k = 0; k < step.count; ++k) {
          if (const char* bad = Add(actor.values[k], message.values[k])) return Fail(actor, bad);
        }
      }
    }
    if (step.flags & kPostscale) {
      for (Value& value : actor.values) {
        if (const char* bad = Postscale(value, everybody_)) return Fail(actor, bad);
      }
    }
    if (step.dst != Buffer::kNone && !gathers) {
      actor.source = Store(actor, step, step.dst_chunk, actor.values);
    }
  }

  // Operands are combined in the order of the ranks that they came from, this one among them.
  void NoteOrder(Actor& actor, std::vector<std::pair<uint32_t, Message>>& taken) {
    for (size_t k = 0; k < actor.values.size(); ++k) {
      std::map<uint32_t, uint32_t> by_rank{{actor.rank, actor.values[k].expression}};
      for (const auto& [peer, message] : taken) by_rank[peer] = message.values[k].expression;
      std::vector<uint32_t> operands;
      for (const auto& [rank, expression] : by_rank) operands.push_back(expression);
      actor.values[k].expression = expressions_.Balanced(operands);
    }
  }

  Message Take(Actor& actor, const Step& step, uint32_t peer) {
    Link* link = network_.Find(peer, actor.rank, step.channel);
    Message message = std::move(link->messages.front());
    link->messages.pop_front();
    Queue(link->sender);
    Join(actor.clock, message.clock);
    actor.chain = std::max(actor.chain, message.chain);
    if (message.values.size() != step.count) Fail(actor, "expects another number of chunks");
    if (message.window != actor.window) Fail(actor, "expects another window");
    const uint32_t a = Index(actor);
    for (uint32_t k = 0; k < message.source.count; ++k) {
      Cell& cell = memory_[message.source.cell(k)];
      --cell.travelling;
      if (const char* bad = cell.Read(actor.clock, {a, actor.clock[a]})) Fail(actor, bad);
    }
    if (step.flags & kPrescaleReceived) {
      for (Value& value : message.values) {
        if (const char* bad = Prescale(value)) Fail(actor, bad);
      }
    }
    Turn& turn = TurnOf(peer, message.window);
    if (rules_.drains) Join(turn.over, actor.clock);
    if (--turn.untaken == 0) QueueRank(peer);
    return message;
  }

  Value ReadOwn(Actor& actor, const Step& step, uint32_t index) {
    Cell& cell = memory_[index];
    const uint32_t a = Index(actor);
    if (const char* bad = cell.Read(actor.clock, {a, actor.clock[a]})) Fail(actor, bad);
    Value value = cell.value;
    if (step.flags & kPrescaleOwn) {
      if (const char* bad = Prescale(value)) Fail(actor, bad);
    }
    return value;
  }

  Extent Store(Actor& actor, const Step& step, uint32_t chunk, const std::vector<Value>& values) {
    const char* wrong = nullptr;
    const Extent extent =
        memory_.Find(actor.rank, actor.window, step.dst, chunk, step.count, &wrong);
    if (wrong) {
      Fail(actor, wrong);
      return extent;
    }
    const uint32_t a = Index(actor);
    for (uint32_t k = 0; k < extent.count; ++k) {
      if (!memory_.Writable(actor.rank, step.dst, (chunk + k) % extent.size)) {
        Fail(actor, "writes where it must not");
      }
      if (const char* bad = CheckPlaceOf(actor, step, chunk + k, values[k])) Fail(actor, bad);
      Cell& cell = memory_[extent.cell(k)];
      // A copy of a buffer onto itself is none.
      if (step.op == Op::kCopy && cell.value == values[k] && rules_.in_place) continue;
      if (const char* bad = cell.Write(actor.clock, {a, actor.clock[a]}, values[k])) {
        Fail(actor, bad);
      }
    }
    return extent;
  }

  // An executor gives unfinished sums a type of their own, and chunks of scratch the size of what
  // they are said to be kept for.
  const char* CheckPlaceOf(const Actor& actor, const Step& step, uint32_t chunk,
                           const Value& value) {
    const bool sums = facts_.goal == Goal::kAllreduce || facts_.goal == Goal::kReduceScatter ||
                      facts_.goal == Goal::kReduce;
    if (step.dst == Buffer::kScratch) {
      const Part part = schedule_.kept(actor.rank, chunk % schedule_.scratch(actor.rank));
      if (part.chunk != value.chunk) return "keeps a chunk where another one belongs";
      if (sums && (value.finished || value.scaled != value.ranks)) {
        return "keeps what is no unfinished sum";
      }
      const uint64_t source = uint64_t{1} << part.source;
      if (!sums && value.ranks != source) return "keeps what came from another rank";
    } else if (sums && step.src == Buffer::kNone && !value.finished) {
      return "takes an unfinished sum for a result";
    }
    return nullptr;
  }

  void Post(Actor& actor, const Step& step) {
    ForEachTarget(step, actor.rank, [&](uint32_t peer) {
      Link* link = network_.Find(actor.rank, peer, step.channel);
      for (uint32_t k = 0; k < actor.source.count; ++k) ++memory_[actor.source.cell(k)].travelling;
      link->messages.push_back(
          {actor.values, actor.source, actor.clock, actor.chain + 1, actor.window});
      ++link->use.messages;
      link->use.chunks += step.count;
      ++TurnOf(actor.rank, actor.window).untaken;
      proof_.rounds = std::max(proof_.rounds, actor.chain + 1);
      if (link->receiver != kNobody) {
        Queue(link->receiver);
      } else {
        QueueRank(peer);
      }
    });
  }

  // --- who runs next

  uint32_t Index(const Actor& actor) const { return actor.rank * facts_.lanes + actor.lane; }
  Turn& TurnOf(uint32_t rank, uint32_t window) { return turns_[rank * rules_.windows + window]; }
  void Queue(uint32_t a) {
    if (actors_[a].queued) return;
    actors_[a].queued = true;
    queue_.push_back(a);
  }
  void QueueRank(uint32_t rank) {
    for (uint32_t lane = 0; lane < facts_.lanes; ++lane) Queue(rank * facts_.lanes + lane);
  }

  // --- what went wrong

  static std::string At(const Actor& actor) {
    return "rank " + std::to_string(actor.rank) + ", lane " + std::to_string(actor.lane) +
           ", window " + std::to_string(actor.window) + ", step " + std::to_string(actor.k) + " ";
  }
  void Fail(const Actor& actor, const char* what) {
    if (wrong_.empty()) wrong_ = At(actor) + what;
  }
  std::string Stuck(const Actor& actor) {
    if (actor.k == schedule_.steps(actor.rank, actor.lane)) return At(actor) + "never begins";
    const Step step = schedule_.step(actor.rank, actor.lane, actor.k);
    std::string text = At(actor) + "waits for ever";
    ForEachSource(step, actor.rank, [&](uint32_t peer) {
      if (!actor.received && network_.Find(peer, actor.rank, step.channel)->messages.empty()) {
        text += ", to receive from rank " + std::to_string(peer);
      }
    });
    ForEachTarget(step, actor.rank, [&](uint32_t peer) {
      if (network_.Find(actor.rank, peer, step.channel)->messages.size() >= rules_.depth) {
        text += ", to send to rank " + std::to_string(peer);
      }
    });
    return text;
  }

  const Schedule& schedule_;
  const Facts facts_;
  const Rules rules_;
  Expressions expressions_;
  Memory memory_;
  const uint64_t everybody_;
  std::vector<Actor> actors_;
  std::deque<uint32_t> queue_;
  Network network_;
  std::vector<Turn> turns_;
  std::vector<Clock> lane_ends_;  ///< by actor and window
  std::string wrong_;
  Proof proof_;
};

}  // namespace

Result<Proof> Prove(const Schedule& schedule, const Rules& rules) {
  if (schedule.facts().ranks > kMostProvableRanks) {
    return MakeError(ErrorKind::kInvalid, "a proof takes at most 64 ranks");
  }
  return Prover(schedule, rules).Run();
}

}  // namespace horoacc::schedule
