#include "schedule/prove/prover.h"

#include <deque>
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

bool NamesNobody(const Step& step, uint32_t rank, const Facts& facts) {
  if ((step.flags & (kReceiveRange | kSendRange)) != 0 &&
      uint64_t{step.peer[0]} + step.peer[1] > facts.ranks) {
    return true;
  }
  bool wrong = false;
  const auto check = [&](uint32_t peer) { wrong = wrong || peer >= facts.ranks || peer == rank; };
  ForEachSource(step, rank, check);
  ForEachTarget(step, rank, check);
  return wrong;
}

// Checks that the step has the operands of its operation, and that its peers are other ranks.
// Returns the fault, or nullptr.
const char* CheckForm(const Step& step, uint32_t rank, const Facts& facts) {
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
  if (NamesNobody(step, rank, facts)) return "has a peer that is no other rank";
  return nullptr;
}

// Checks that the step may put `value` into chunk `chunk` of its destination. Returns the fault, or
// nullptr. An executor gives unfinished sums a type of their own, and a chunk of scratch the size
// of the part that the schedule keeps there.
const char* CheckPlace(const Schedule& schedule, uint32_t rank, const Step& step, uint32_t chunk,
                       const Value& value) {
  const Goal goal = schedule.facts().goal;
  const bool sums =
      goal == Goal::kAllreduce || goal == Goal::kReduceScatter || goal == Goal::kReduce;
  if (step.dst == Buffer::kScratch) {
    const Part part = schedule.kept(rank, chunk % schedule.scratch(rank));
    if (part.chunk != value.chunk) return "keeps a chunk where another one belongs";
    if (sums && (value.finished || !value.scaled)) return "keeps what is no unfinished sum";
    const uint64_t source = uint64_t{1} << part.source;
    if (!sums && value.ranks != source) return "keeps what came from another rank";
  } else if (sums && step.src == Buffer::kNone && !value.finished) {
    return "takes an unfinished sum for a result";
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
        actors_(static_cast<size_t>(facts_.ranks) * facts_.lanes),
        network_(facts_.ranks),
        turns_(static_cast<size_t>(facts_.ranks) * rules.windows),
        clocks_(actors_.size(), actors_.size()),
        turns_over_(turns_.size(), actors_.size()),
        lane_ends_(actors_.size() * rules.windows, actors_.size()) {
    for (uint32_t a = 0; a < actors_.size(); ++a) {
      actors_[a].rank = a / facts_.lanes;
      actors_[a].lane = a % facts_.lanes;
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
      if (actor.window < rules_.windows) {
        return MakeError(ErrorKind::kInvalid, WhyStuck(network_, actor, rules_.depth));
      }
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

  bool HasMessages(Actor& actor) {
    uint32_t at = 0;
    bool all = true;
    ForEachSource(actor.step, actor.rank, [&](uint32_t peer) {
      if (!all || at++ < actor.sources_ready) return;
      Link& link = network_.Find(peer, actor.rank, actor.step.channel);
      if (!Network::Claim(link.receiver, Index(actor))) Fail(actor, "shares a link with a lane");
      all = !link.messages.empty();
      if (all) ++actor.sources_ready;
    });
    return all && wrong_.empty();
  }

  bool HasRoom(Actor& actor) {
    uint32_t at = 0;
    bool all = true;
    ForEachTarget(actor.step, actor.rank, [&](uint32_t peer) {
      if (!all || at++ < actor.targets_ready) return;
      Link& link = network_.Find(actor.rank, peer, actor.step.channel);
      if (!Network::Claim(link.sender, Index(actor))) Fail(actor, "shares a link with a lane");
      all = link.messages.size() < rules_.depth;
      if (all) ++actor.targets_ready;
    });
    return all && wrong_.empty();
  }

  [[nodiscard]] bool Drains(const LinkUse& link) const {
    const LinkUse* careless = rules_.careless ? &*rules_.careless : nullptr;
    return careless == nullptr || careless->from != link.from || careless->to != link.to ||
           careless->channel != link.channel;
  }

  // --- running

  bool Advance(uint32_t a) {
    Actor& actor = actors_[a];
    if (actor.window == rules_.windows || !MayBegin(actor)) return false;
    if (actor.k == schedule_.steps(actor.rank, actor.lane)) return EndWindow(a);
    if (!actor.fetched && !Fetch(actor)) return false;
    if (!actor.received) {
      if (!Awaited(actor) || !HasMessages(actor)) return false;
      if (rules_.fused && !HasRoom(actor)) return false;
      FirstHalf(a);
      actor.received = true;
    }
    if (!wrong_.empty() || !HasRoom(actor)) return false;
    Post(actor);
    actor.received = actor.fetched = false;
    ++actor.k;
    ++proof_.steps;
    return wrong_.empty();
  }

  bool Fetch(Actor& actor) {
    actor.step = schedule_.step(actor.rank, actor.lane, actor.k);
    actor.fetched = true;
    actor.sources_ready = actor.targets_ready = 0;
    const char* wrong = CheckForm(actor.step, actor.rank, facts_);
    if (wrong != nullptr) Fail(actor, wrong);
    return wrong == nullptr;
  }

  // Whether the earlier window that used the same memory of the rank is over.
  bool MayBegin(const Actor& actor) {
    if (actor.k > 0 || actor.received || actor.window < rules_.places) return true;
    const uint32_t turn = TurnOf(actor.rank, actor.window - rules_.places);
    if (turns_[turn].lanes_ended < facts_.lanes) return false;
    if (rules_.drains && turns_[turn].untaken > 0) return false;
    Join(ClockOf(actor), turns_over_[turn]);
    return true;
  }

  bool Awaited(Actor& actor) {
    for (uint32_t lane = 0; actor.step.after >> lane != 0 && lane < facts_.lanes; ++lane) {
      if ((actor.step.after >> lane & 1) == 0) continue;
      const Actor& other = actors_[actor.rank * facts_.lanes + lane];
      if (other.window <= actor.window) return false;
      Join(ClockOf(actor), lane_ends_[Index(other) * rules_.windows + actor.window]);
      actor.chain = std::max(actor.chain, other.chain);
    }
    return true;
  }

  bool EndWindow(uint32_t a) {
    Actor& actor = actors_[a];
    const uint32_t turn = TurnOf(actor.rank, actor.window);
    ++turns_[turn].lanes_ended;
    Join(turns_over_[turn], ClockOf(actor));
    Join(lane_ends_[a * rules_.windows + actor.window], ClockOf(actor));
    ++actor.window;
    actor.k = 0;
    QueueRank(actor.rank);
    return true;
  }

  // Receives, combines and stores.
  void FirstHalf(uint32_t a) {
    Actor& actor = actors_[a];
    const Step& step = actor.step;
    taken_.clear();
    ForEachSource(step, actor.rank,
                  [&](uint32_t peer) { taken_.emplace_back(peer, Take(actor, peer)); });
    Tick(actor);
    if (wrong_.empty()) Combine(actor);
    for (const auto& [peer, message] : taken_) network_.Taken(message);
    if (!wrong_.empty()) return;
    const bool gathers = step.op == Op::kRecv && (step.flags & kReceiveRange) != 0;
    if (step.flags & kPostscale) {
      for (Value& value : actor.values) {
        if (const char* bad = Postscale(value, everybody_)) return Fail(actor, bad);
      }
    }
    if (step.dst != Buffer::kNone && !gathers) {
      actor.source = Store(actor, step.dst_chunk, actor.values);
    }
  }

  // Combines own chunks with those of `taken_` into the actor's values; gathered chunks go to
  // memory.
  void Combine(Actor& actor) {
    const Step& step = actor.step;
    const bool gathers = step.op == Op::kRecv && (step.flags & kReceiveRange) != 0;
    const char* wrong = nullptr;
    const Extent own =
        memory_.Find(actor.rank, actor.window, step.src, step.src_chunk, step.count, &wrong);
    if (wrong) return Fail(actor, wrong);
    actor.values.clear();
    for (uint32_t k = 0; k < own.count && step.src != Buffer::kNone; ++k) {
      actor.values.push_back(ReadOwn(actor, own.cell(k)));
    }
    actor.source = step.op == Op::kSend ? own : Extent{};
    const bool reduces = step.src != Buffer::kNone && !taken_.empty();
    if (reduces && facts_.in_rank_order) NoteOrder(actor);
    for (const auto& [peer, message] : taken_) {
      std::vector<Value>& values = step.src == Buffer::kNone ? actor.values : received_;
      values = message->values;
      if (step.flags & kPrescaleReceived) {
        for (Value& value : values) {
          if (const char* bad = Prescale(value)) return Fail(actor, bad);
        }
      }
      if (gathers) Store(actor, step.dst_chunk + (peer - step.peer[0]) * step.count, values);
      for (uint32_t k = 0; reduces && k < step.count; ++k) {
        if (const char* bad = Add(actor.values[k], values[k])) return Fail(actor, bad);
      }
    }
  }

  // Operands, this rank's own among them, are combined in the order of their ranks.
  void NoteOrder(Actor& actor) {
    operands_.clear();
    for (uint32_t k = 0; k < taken_.size(); ++k) operands_.emplace_back(taken_[k].first, k);
    operands_.emplace_back(actor.rank, taken_.size());
    std::ranges::sort(operands_);
    for (size_t k = 0; k < actor.values.size(); ++k) {
      expressions_of_operands_.clear();
      for (const auto& [rank, which] : operands_) {
        const Value& value =
            which == taken_.size() ? actor.values[k] : taken_[which].second->values[k];
        expressions_of_operands_.push_back(value.expression);
      }
      actor.values[k].expression = expressions_.Balanced(expressions_of_operands_);
    }
  }

  Message* Take(Actor& actor, uint32_t peer) {
    const Step& step = actor.step;
    Link& link = network_.Find(peer, actor.rank, step.channel);
    Message* message = link.Pop();
    Queue(link.sender);
    const Clock clock = ClockOf(actor);
    Join(clock, message->clock);
    actor.chain = std::max(actor.chain, message->chain);
    if (message->values.size() != step.count) Fail(actor, "expects another number of chunks");
    if (message->window != actor.window) Fail(actor, "expects another window");
    const Event now = Tick(actor);  // an event of its own: actors may see it within the step
    for (uint32_t k = 0; k < message->source.count; ++k) {
      Cell& cell = memory_[message->source.cell(k)];
      --cell.travelling;
      if (const char* bad = cell.Read(clock, now)) Fail(actor, bad);
    }
    const uint32_t turn = TurnOf(peer, message->window);
    const bool reused = message->window + rules_.places < rules_.windows;
    if (!Drains(link.use)) return message;
    if (rules_.drains && reused) Join(turns_over_[turn], clock);
    if (--turns_[turn].untaken == 0) QueueRank(peer);
    return message;
  }

  Value ReadOwn(const Actor& actor, uint32_t index) {
    Cell& cell = memory_[index];
    if (const char* bad = cell.Read(ClockOf(actor), Now(actor))) Fail(actor, bad);
    Value value = cell.value;
    if (actor.step.flags & kPrescaleOwn) {
      if (const char* bad = Prescale(value)) Fail(actor, bad);
    }
    return value;
  }

  Extent Store(const Actor& actor, uint32_t chunk, const std::vector<Value>& values) {
    const Step& step = actor.step;
    const char* wrong = nullptr;
    const Extent extent =
        memory_.Find(actor.rank, actor.window, step.dst, chunk, step.count, &wrong);
    if (wrong) {
      Fail(actor, wrong);
      return extent;
    }
    for (uint32_t k = 0; k < extent.count; ++k) {
      if (!memory_.Writable(actor.rank, step.dst, (chunk + k) % extent.size)) {
        Fail(actor, "writes where it must not");
      }
      if (const char* bad = CheckPlace(schedule_, actor.rank, step, chunk + k, values[k])) {
        Fail(actor, bad);
      }
      Cell& cell = memory_[extent.cell(k)];
      // A copy of a buffer onto itself writes nothing.
      if (step.op == Op::kCopy && cell.value == values[k] && rules_.in_place) continue;
      if (const char* bad = cell.Write(ClockOf(actor), Now(actor), values[k])) Fail(actor, bad);
    }
    return extent;
  }

  void Post(Actor& actor) {
    if (!Sends(actor.step)) return;
    Message* message = network_.NewMessage();
    const Clock clock = ClockOf(actor);
    message->values = actor.values;
    message->source = actor.source;
    message->clock.assign(clock.begin(), clock.end());
    message->chain = actor.chain + 1;
    message->window = actor.window;
    message->untaken = 0;
    ForEachTarget(actor.step, actor.rank, [&](uint32_t peer) {
      Link& link = network_.Find(actor.rank, peer, actor.step.channel);
      for (uint32_t k = 0; k < actor.source.count; ++k) ++memory_[actor.source.cell(k)].travelling;
      link.messages.push_back(message);
      ++message->untaken;
      ++link.use.messages;
      link.use.chunks += actor.step.count;
      if (Drains(link.use)) ++turns_[TurnOf(actor.rank, actor.window)].untaken;
      proof_.rounds = std::max(proof_.rounds, message->chain);
      if (link.receiver != kNobody) {
        Queue(link.receiver);
      } else {
        QueueRank(peer);
      }
    });
  }

  // --- time

  [[nodiscard]] Clock ClockOf(const Actor& actor) { return clocks_[Index(actor)]; }
  Event Now(const Actor& actor) {
    const uint32_t a = Index(actor);
    return {static_cast<uint16_t>(a), ClockOf(actor)[a]};
  }
  Event Tick(Actor& actor) {
    Time& now = ClockOf(actor)[Index(actor)];
    if (now == kLastTime) {
      Fail(actor, "is one of more than a proof can count");
    } else {
      ++now;
    }
    return Now(actor);
  }

  // --- who runs next

  uint32_t Index(const Actor& actor) const { return actor.rank * facts_.lanes + actor.lane; }
  uint32_t TurnOf(uint32_t rank, uint32_t window) const { return rank * rules_.windows + window; }
  void Queue(uint32_t a) {
    if (actors_[a].queued) return;
    actors_[a].queued = true;
    queue_.push_back(a);
  }
  void QueueRank(uint32_t rank) {
    for (uint32_t lane = 0; lane < facts_.lanes; ++lane) Queue(rank * facts_.lanes + lane);
  }

  // --- what went wrong

  void Fail(const Actor& actor, const char* what) {
    if (wrong_.empty()) wrong_ = PlaceOf(actor) + what;
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
  Clocks clocks_;      ///< by actor
  Clocks turns_over_;  ///< by turn
  Clocks lane_ends_;   ///< by actor and window
  // Of the current step; members, so that their memory is reused.
  std::vector<std::pair<uint32_t, Message*>> taken_;  ///< by source
  std::vector<Value> received_;
  std::vector<std::pair<uint32_t, size_t>> operands_;  ///< rank, and place in `taken_`
  std::vector<uint32_t> expressions_of_operands_;
  std::string wrong_;
  Proof proof_;
};

}  // namespace

Result<Proof> Prove(const Schedule& schedule, const Rules& rules) {
  const Facts& facts = schedule.facts();
  if (facts.ranks > kMostProvableRanks || facts.lanes > kMostProvableLanes) {
    return MakeError(ErrorKind::kInvalid, "a proof takes at most 64 ranks and 32 lanes");
  }
  return Prover(schedule, rules).Run();
}

}  // namespace horoacc::schedule
