#include "model/host_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/clock.h"
#include "negotiate/multi_host/subtree_aggregator.h"

namespace horoacc::model {
namespace {

using testing::Bytes;

constexpr float kSpent = -1e9f;   // what a caller leaves in its input once the call is over
constexpr size_t kKindAt = 4;     // of a message, behind the number of its set

class Hash {
 public:
  void Mix(uint64_t word) {
    state_ = (state_ ^ word) * 0x9e3779b97f4a7c15ull;
    state_ ^= state_ >> 29;
  }
  void Mix(std::string_view text) {
    Mix(text.size());
    for (const char c : text) Mix(static_cast<uint64_t>(c));
  }
  [[nodiscard]] uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0x243f6a8885a308d3ull;
};

uint64_t WordOf(const std::atomic<Arrivals>& arrivals) {
  const Arrivals seen = arrivals.load();
  uint64_t word = 0;
  std::memcpy(&word, &seen, sizeof word);
  return word;
}

MultiHostMessage KindOf(const Bytes& message) {
  return static_cast<MultiHostMessage>(message[kKindAt]);
}

uint32_t AllOf(int ranks) { return (1u << ranks) - 1; }

int RanksOf(const std::vector<int>& hosts) {
  int ranks = 0;
  for (const int of_one : hosts) ranks += of_one;
  return ranks;
}

}  // namespace

HostModel::HostModel(HostShape shape)
    : shape_(std::move(shape)), views_(shape_.hosts), numbers_(RanksOf(shape_.hosts)) {
  for (int rank = 0; rank < views_.size(); ++rank) {
    for (const HostStep& step : shape_.scripts[rank]) {
      float*& numbers = numbers_[rank][step.name];
      if (step.kind == HostStep::Kind::kSubmit && !numbers)
        numbers = static_cast<float*>(views_.arena(rank).Allocate(4 * sizeof(float)));
    }
  }
}

void HostModel::StartAgain() {
  views_.StartAgain();
  ranks_.assign(views_.size(), {});
  leaders_past_.assign(views_.size(), 0);
  links_.clear();
  log_.Clear();
  pauses_ = 0;
  wrong_.clear();
  for (int rank = 0; rank < views_.size(); ++rank) {
    if (Leads(rank) && shape_.few_ids > 0) control(rank).header().ids = kNamedIds - shape_.few_ids;
  }
}

// What may happen next.

const HostModel::Call* HostModel::Find(int rank, const std::string& name) const {
  const auto& calls = ranks_[rank].calls;
  const auto found = std::ranges::find(calls, name, &Call::name);
  return found == calls.end() ? nullptr : &*found;
}

bool HostModel::IsWriting(int rank) const {
  return std::ranges::any_of(ranks_[rank].calls, [](const Call& call) { return !call.announced; });
}

bool HostModel::MayStep(int rank) const {
  const Rank& own = ranks_[rank];
  if (own.step == shape_.scripts[rank].size()) return false;
  const HostStep& step = shape_.scripts[rank][own.step];
  if (IsWriting(rank)) {
    return shape_.fault == HostFault::kJoinsBeforeRow && step.kind == HostStep::Kind::kJoin;
  }
  if (own.joined && (step.kind == HostStep::Kind::kSubmit || step.kind == HostStep::Kind::kWait))
    return false;
  switch (step.kind) {
    case HostStep::Kind::kSubmit:
      return (step.name.empty() || (!Find(rank, step.name) &&
                                    std::ranges::find(own.again, step.name) == own.again.end())) &&
             own.stuck_at == 0;
    case HostStep::Kind::kWait:
      return own.calls.empty() && own.again.empty();
    case HostStep::Kind::kJoin:
      return !own.joined && own.again.empty();
    default:
      return true;
  }
}

uint64_t HostModel::ProgressOfHost(int rank) const {
  uint64_t sum = 1;
  for (uint32_t r = 0; r < control(rank).ranks(); ++r) sum += control(rank).cursor(r).words;
  return sum;
}

// Members of buckets that the rank has submitted and that are not decided, by bucket.
std::map<uint32_t, uint32_t> HostModel::PartsOfBuckets(int rank) const {
  std::map<uint32_t, uint32_t> parts;
  for (const Call& call : ranks_[rank].calls) {
    const uint32_t bucket = call.key.id < kNamedIds ? control(rank).id(call.key.id).bucket.load() : 0;
    if (bucket != 0) ++parts[bucket];
  }
  return parts;
}

// It would say something that it has not said yet.
bool HostModel::MayUnblock(int rank) const {
  const Rank& own = ranks_[rank];
  if (HasMore(rank) || IsWriting(rank) || MayStep(rank)) return false;
  const PlanState& plan = control(rank).plan();
  const std::pair state(control(rank).header().decided, *plan.version);
  return std::ranges::any_of(PartsOfBuckets(rank), [&](const auto& part) {
    if (part.second == plan.buckets[part.first - 1].count) return false;
    const auto said = own.split_said.find(part.first);
    return said == own.split_said.end() || said->second != state;
  });
}

std::vector<HostModel::Action> HostModel::Enabled() const {
  std::vector<Action> enabled;
  const auto add = [&](Kind kind, int who, bool may, int from = 0) {
    if (may) enabled.push_back({kind, who, from});
  };
  for (int rank = 0; rank < views_.size(); ++rank) {
    const Rank& own = ranks_[rank];
    if (own.dead) continue;
    const bool outbox = Leads(rank) && !control(rank).outbox().empty() &&
                        shape_.fault != HostFault::kForgetsLeader;
    add(Kind::kPump, rank, outbox || own.pump_due);
    add(Kind::kDie, rank, std::ranges::find(shape_.dies, rank) != shape_.dies.end());
    add(Kind::kFinish, rank, !own.unfinished.empty());
    if (own.closed) continue;
    const bool writes = IsWriting(rank);
    const bool ended = static_cast<bool>(views_.controller(rank).Ended());
    add(Kind::kStep, rank, MayStep(rank));
    add(Kind::kAnnounce, rank, writes);
    add(Kind::kAgain, rank,
        !writes && !own.again.empty() && !Find(rank, own.again.front()) &&
            own.stuck_at != ProgressOfHost(rank));
    add(Kind::kTake, rank, !writes && HasMore(rank));
    add(Kind::kUnblock, rank, MayUnblock(rank));
    const bool through = !HasMore(rank) && own.unfinished.empty();
    add(Kind::kClose, rank,
        ended && !writes && (through || shape_.fault == HostFault::kClosesEarly));
  }
  for (const auto& [link, messages] : links_) {
    if (messages.empty() || ranks_[link.second].dead) continue;
    add(Kind::kDeliver, link.second, true, link.first);
    add(Kind::kLose, link.second, ranks_[link.first].dead, link.first);
  }
  add(Kind::kPause, 0, pauses_ < shape_.pauses);
  return enabled;
}

// What happens.

void HostModel::Must(const Status& status) {
  if (!status.ok()) Wrong("an error: " + status.error().message);
}

void HostModel::Do(const Action& action) {
  const int who = action.who;
  Rank& rank = ranks_[who];
  if (action.kind != Kind::kPause && action.kind != Kind::kTake && action.kind != Kind::kFinish) {
    // All that a leader knows, and what other ranks' controllers keep, follows from this.
    Hash past;
    past.Mix(Leads(who) ? leaders_past_[who] : rank.past);
    past.Mix(static_cast<uint64_t>(action.kind) << 32 | static_cast<uint64_t>(action.from));
    const bool counts = Leads(who) || action.kind == Kind::kUnblock || rank.question || shape_.pauses > 0;
    if (action.kind == Kind::kDeliver) {
      for (const std::byte byte : links_[{action.from, who}].front())
        past.Mix(static_cast<uint64_t>(byte));
    }
    past.Mix(DigestOfSegment(who));
    past.Mix(rank.step);
    if (Leads(who)) leaders_past_[who] = past.value();
    else if (counts) rank.past = past.value();
  }
  switch (action.kind) {
    case Kind::kStep:
      Step(who);
      break;
    case Kind::kAnnounce:
      Announce(who);
      break;
    case Kind::kAgain: {
      const std::string name = rank.again.front();
      rank.again.pop_front();
      Submit(who, name);
      break;
    }
    case Kind::kTake:
      Take(who);
      break;
    case Kind::kFinish:
      Finish(who, rank.unfinished.front());
      rank.unfinished.pop_front();
      break;
    case Kind::kPump:
      rank.pump_due = false;
      CountTold(who);
      Must(views_.controller(who).Pump());
      break;
    case Kind::kUnblock: {
      const PlanState& plan = control(who).plan();
      for (const auto& [bucket, here] : PartsOfBuckets(who))
        rank.split_said[bucket] = {control(who).header().decided, *plan.version};
      if (!std::exchange(rank.wait_begun, true)) ++rank.waits;
      std::vector<uint32_t> in_flight;
      for (const Call& call : rank.calls) in_flight.push_back(call.key.id);
      Must(views_.controller(who).Unblock(in_flight));
      break;
    }
    case Kind::kClose:
      Close(who);
      break;
    case Kind::kDie:
      rank.dead = true;
      break;
    case Kind::kDeliver:
      Deliver(action.from, who);
      break;
    case Kind::kLose:
      links_[{action.from, who}].clear();
      break;
    case Kind::kPause:
      ++pauses_;
      testing::StillClock() += kSubtreeTimeout + kMillisecond;
      for (Rank& each : ranks_) each.pump_due = !each.dead;
      break;
  }
  CollectSent();
  for (int r = 0; r < views_.size(); ++r) {
    if (!views_.controller(r).Released()) continue;
    for (const Rank& each : ranks_) {
      if (!each.closed) Wrong("a set is released while a rank is not done with it");
    }
  }
}

void HostModel::CollectSent() {
  for (int rank = 0; rank < views_.size(); ++rank) {
    for (ControlMessage& message : std::exchange(views_.tap(rank).sent, {})) {
      if (!Leads(rank) || !Leads(message.source)) Wrong("a message that is not between leaders");
      links_[{rank, message.source}].push_back(std::move(message.bytes));
    }
  }
}

void HostModel::Deliver(int from, int to) {
  std::deque<Bytes>& link = links_[{from, to}];
  const bool more = link.size() > 1;
  const bool overtaken = more && KindOf(link[0]) == MultiHostMessage::kReady &&
                         KindOf(link[1]) == MultiHostMessage::kJoined;
  if (shape_.fault == HostFault::kReordersLink && more) std::swap(link.front(), link.back());
  if (shape_.fault == HostFault::kJoinOvertakes && overtaken) std::swap(link[0], link[1]);
  const Bytes message = std::move(link.front());
  link.pop_front();
  Must(views_.Give(to, from, message));
  if (shape_.fault == HostFault::kDoubles && KindOf(message) == MultiHostMessage::kReady)
    Must(views_.Give(to, from, message));
}

void HostModel::Step(int rank) {
  Rank& own = ranks_[rank];
  Controller& controller = views_.controller(rank);
  const HostStep& step = shape_.scripts[rank][own.step++];
  const Call* const call = Find(rank, step.name);
  switch (step.kind) {
    case HostStep::Kind::kSubmit:
      return Submit(rank, step.name.empty() ? "#" + std::to_string(own.unnamed++) : step.name);
    case HostStep::Kind::kWait:
      own.wait_begun = false;
      return;
    case HostStep::Kind::kJoin:
      own.joined = true;
      ++own.joins;
      return Must(controller.Join(own.unnamed));
    case HostStep::Kind::kEnd:
      Must(controller.End(step.end));
      if (shape_.fault == HostFault::kReleasesEarly) Must(controller.Release());
      return;
    case HostStep::Kind::kGiveUp:
      if (call) {
        Must(controller.Reject(call->key, MakeError(ErrorKind::kTimeout,
                                                    "rank " + std::to_string(rank) + " gives up " +
                                                        call->name)));
      }
      if (step.end) Must(controller.End(step.end));
      return;
    case HostStep::Kind::kAsk:
      if (call || (step.name.empty() && own.joined)) Ask(rank, call);
  }
}

void HostModel::Submit(int rank, const std::string& name) {
  Rank& own = ranks_[rank];
  Call call{name};
  if (name[0] == '#') {
    call.number = std::stoull(name.substr(1));
    call.key.id = kNamedIds + static_cast<uint32_t>(call.number % kUnnamedIds);
  } else if (!LookUp(rank, call, false)) {
    return;
  }
  own.calls.push_back(std::move(call));
  WriteRow(rank, own.calls.back());
  if (shape_.slow_rows) return;
  while (IsWriting(rank) && wrong_.empty()) Announce(rank);
}

// False: the call has to wait for another one of the rank that has its id, or for an id.
bool HostModel::LookUp(int rank, Call& call, bool afresh) {
  Rank& own = ranks_[rank];
  const auto holder = [&](uint32_t id) {
    return std::ranges::any_of(own.calls, [&](const Call& other) {
      return other.key.id == id && other.name != call.name;
    });
  };
  auto known = own.ids.find(call.name);
  if (afresh || known == own.ids.end() || holder(known->second.id)) {
    const auto found = control(rank).Lookup(call.name);
    if (!found.ok()) {
      own.stuck_at = ProgressOfHost(rank);
      own.again.push_front(call.name);
      return false;
    }
    own.stuck_at = 0;
    const bool ended = static_cast<bool>(views_.controller(rank).Ended());  // nothing counts
    for (int other = views_.LeaderOf(rank); !ended && other < views_.size(); ++other) {
      if (views_.LeaderOf(other) != views_.LeaderOf(rank)) break;
      for (const Call& held : ranks_[other].calls) {
        if (held.key.id == found.value().id && held.name != call.name && held.announced)
          Wrong("the id of an undecided call goes to another name");
      }
    }
    known = own.ids.insert_or_assign(call.name, found.value()).first;
    if (holder(known->second.id)) {
      own.again.push_back(call.name);
      return false;
    }
  }
  call.key.id = known->second.id;
  return true;
}

void HostModel::WriteRow(int rank, Call& call) {
  Rank& own = ranks_[rank];
  uint64_t input = kPrivate;
  const bool named = call.key.id < kNamedIds;
  if (float* const numbers = numbers_[rank][named ? call.name : ""]; named && shape_.eager) {
    std::fill_n(numbers, 4, InputOf(rank, own.rounds[call.name]));
    input = views_.arena(rank).OffsetOf(numbers);
  }
  call.key = views_[rank].WriteRow(call.key.id, Collective::kAllreduce, input);
  Row& row = control(rank).row(control(rank).me(), call.key.id, call.key.generation);
  row.number = call.number;
  row.sync_round = own.waits;
  if (shape_.fault == HostFault::kCountsBeforeRow) row.generation.store(0);
}

void HostModel::Announce(int rank) {
  Rank& own = ranks_[rank];
  const auto call = std::ranges::find(own.calls, false, &Call::announced);
  const bool named = call->key.id < kNamedIds;
  uint32_t version = named ? own.ids.at(call->name).id_version : 0;
  if (shape_.fault == HostFault::kSkipsLookUp)
    version = control(rank).id(call->key.id).arrivals.load().id_version();
  const auto announced =
      views_.controller(rank).Announce({call->key.id, call->key.generation, version});
  if (!announced.ok()) return Must(announced.error());
  std::atomic<uint64_t>& row =
      control(rank).row(control(rank).me(), call->key.id, call->key.generation).generation;
  if (announced.value() == Announced::kTaken) {
    call->announced = true;
    call->pauses = pauses_;
    row.store(call->key.generation);
    return;
  }
  row.store(0);
  if (named && !LookUp(rank, *call, true)) {
    own.calls.erase(call);
    return;
  }
  WriteRow(rank, *call);
}

void HostModel::Ask(int rank, const Call* call) {
  Question question;
  question.joins_over = ranks_[rank].joins_over;
  bool alone = true;
  if (call) {
    question.call = call->key;
    question.name = call->name;
    for (int other = 0; other < views_.size(); ++other) {
      if (views_.LeaderOf(other) != views_.LeaderOf(rank)) continue;
      const Call* const others = Find(other, call->name);
      const bool told = others && others->key.generation == call->key.generation && others->told == Told::kRoot && !shape_.again && shape_.dies.empty() && shape_.hosts.size() <= 1 + kFanOut;
      if (told) question.here |= 1u << other;
      // An earlier question of another rank may be answered first.
      const auto& others_question = ranks_[other].question;
      alone = alone && !(others_question && others_question->name == call->name);
    }
  }
  if (!alone) question.here = 0;
  ranks_[rank].question = question;
  const auto asked = views_.controller(rank).WhoHas(question.call);
  if (!asked.ok()) Must(asked.error());
}

void HostModel::LookAtAnswer(int rank) {
  Rank& own = ranks_[rank];
  if (!own.question) return;
  const Question question = *own.question;
  if (!question.call && own.joins_over != question.joins_over) return;
  if (question.call) {
    const Call* const call = Find(rank, question.name);
    if (!call || call->key.generation != question.call->generation) return;
  }
  const auto answer = views_.controller(rank).WhoHas(question.call);
  if (!answer.ok()) return Must(answer.error());
  if (!answer.value()) return;
  own.question.reset();
  uint32_t has = 0, joined = 0;
  const auto rounds_of = [&](const Rank& of) {
    const auto found = of.rounds.find(question.name);
    return found == of.rounds.end() ? 0 : found->second;
  };
  for (int other = 0; other < views_.size(); ++other) {
    const Rank& theirs = ranks_[other];
    const int ahead = rounds_of(theirs) - rounds_of(own);
    const bool further = theirs.closed || theirs.taken > own.taken;
    if (further || ahead > 0 || Find(other, question.name)) has |= 1u << other;
    if (theirs.joins > own.joins_over) joined |= 1u << other;
  }
  ++answers_;
  if (std::string wrong = WrongWith(*answer.value(), question, has, joined, AllOf(views_.size()));
      !wrong.empty())
    Wrong(std::move(wrong));
}

// Who waits for longer than the others' patience tells the leader, and who is told of it keeps that
// for as long.
void HostModel::CountTold(int rank) {
  for (Call& call : ranks_[rank].calls) {
    if (call.announced && call.told == Told::kNobody && call.pauses < pauses_)
      call.told = Told::kHost;
  }
  for (int other = rank; Leads(rank) && other < views_.size(); ++other) {
    if (views_.LeaderOf(other) != rank) break;
    for (Call& call : ranks_[other].calls) {
      if (call.told == Told::kLeader && call.pauses < pauses_) call.told = Told::kRoot;
      if (call.told == Told::kHost) {
        call.told = Told::kLeader;
        call.pauses = pauses_;
      }
    }
  }
}

void HostModel::Take(int rank) {
  if (shape_.fault == HostFault::kFinishesEarly)
    (void)control(rank).FinishUpTo(control(rank).header().log_words.load(), std::nullopt);
  auto next = views_.controller(rank).Next();
  if (!next.ok()) return Must(next.error());
  LookAtAnswer(rank);
  if (!next.value()) return;
  Account(rank, *next.value());
  if (shape_.late_finish) {
    ranks_[rank].unfinished.push_back(std::move(*next.value()));
  } else {
    Finish(rank, *next.value());
  }
}

void HostModel::Finish(int rank, const Decision& decision) {
  Must(views_.controller(rank).Finish(decision));
}

// As the engine's driver begins a decision, and completes its calls.
void HostModel::Account(int rank, const Decision& decision) {
  Rank& own = ranks_[rank];
  SeenDecision seen;
  seen.kind = decision.kind;
  seen.path = decision.path;
  seen.partial = decision.partial;
  seen.error = decision.error;
  seen.last_joined = decision.last_joined;
  seen.unnamed = decision.unnamed;
  const bool runs = decision.kind == Decision::Kind::kRun;
  for (const CallFacts& facts : decision.facts) seen.results.push_back(facts.result);
  for (size_t k = 0; k < decision.ids.size(); ++k) {
    const uint32_t id = decision.ids[k];
    const auto found = std::ranges::find_if(own.calls, [&](const Call& call) {
      return call.key.id == id && (runs || call.key.generation == decision.generations[k]);
    });
    if (id < kNamedIds) seen.names.push_back(control(rank).NameOf(id));
    if (found == own.calls.end()) {
      seen.looked_on |= 1u << rank;
      if (runs && !(decision.partial && own.joined)) Wrong("runs what a rank has not submitted");
      continue;
    }
    seen.took_part |= 1u << rank;
    if (id >= kNamedIds) seen.names.push_back(found->name);
    if (seen.names.back() != found->name) Wrong("an id stands for another name");
    if (!found->announced) Wrong("a decision about a call that is not announced");
    if (runs && decision.path == Path::kEager) {
      float result = 0;
      std::memcpy(&result, decision.facts[k].result.data(), sizeof result);
      float sum = 0;
      for (int r = 0; r < views_.size(); ++r) sum += InputOf(r, own.rounds[found->name]);
      if (result != sum)
        Wrong("a result of other inputs: " + found->name + " " + std::to_string(result) + " for " + std::to_string(sum));
    }
    const bool named = id < kNamedIds;
    if (named && shape_.eager) std::fill_n(numbers_[rank][found->name], 4, kSpent);
    if (!runs && shape_.again) own.again.push_back(found->name);
    own.calls.erase(found);
  }
  if (decision.ids.empty() && decision.partial) {
    seen.looked_on |= 1u << rank;
    if (!own.joined) Wrong("runs what a rank has not submitted");
  }
  if (runs && !decision.partial) {  // of a partial one not all hosts know the name
    for (const std::string& name : seen.names) ++own.rounds[name];
  }
  if (seen.names.size() < decision.ids.size()) seen.names.clear();
  if (decision.kind == Decision::Kind::kJoin) {
    if (!std::exchange(own.joined, false)) Wrong("a join ends that a rank has not joined");
    ++own.joins_over;
    own.unnamed = std::max(own.unnamed, decision.unnamed);
  }
  std::printf("[%d decision %zu kind %d partial %d path %d took %x looked %x ids", rank, own.taken, (int)decision.kind, decision.partial, (int)decision.path, seen.took_part, seen.looked_on); for (auto& n : seen.names) std::printf(" %s", n.c_str()); std::printf(" %s]\n", decision.error.message.c_str());
  if (std::string wrong = log_.Take(own.taken++, std::move(seen), AllOf(views_.size()));
      !wrong.empty())
    Wrong(std::move(wrong));
}

void HostModel::Close(int rank) {
  Rank& own = ranks_[rank];
  own.closed = true;
  own.calls.clear();  // they fail
  own.again.clear();
  own.joined = false;
  Must(views_.controller(rank).Release());
}

float HostModel::InputOf(int rank, int round) {
  return static_cast<float>((1 << rank) * (1 + 16 * (round % 8)));
}

// The digest of a state.

uint64_t HostModel::DigestOfSegment(int rank) const {
  Hash hash;
  const SetSegment& set = control(rank);
  const SetHeader& header = set.header();
  hash.Mix(static_cast<uint64_t>(header.end.load().wire()) << 32 | header.joined.load());
  hash.Mix(static_cast<uint64_t>(header.ids) << 32 | header.backlog);
  hash.Mix(header.decided << 32 | header.released << 1 | header.all_released.load());
  const auto mix_id = [&](uint32_t id) {
    const IdEntry& entry = set.id(id);
    const uint64_t word = WordOf(entry.arrivals);
    if (word == 0 && entry.name_length == 0) return;
    hash.Mix(word);
    hash.Mix(entry.name_hash + id);
    hash.Mix(entry.last_decision.load());
    hash.Mix(entry.bucket.load());
    for (uint32_t r = 0; r < set.ranks(); ++r) {
      for (const uint64_t parity : {0, 1}) {
        const Row& row = set.row(r, id, parity);
        hash.Mix(row.generation.load() << 32 | row.sequence << 16 | row.number << 8 | row.sync_round);
      }
    }
  };
  const uint32_t first = shape_.few_ids > 0 ? kNamedIds - shape_.few_ids : 0;
  for (uint32_t id = first; id < header.ids; ++id) mix_id(id);
  for (uint32_t id = 0; id < 4; ++id) mix_id(kNamedIds + id);
  for (uint32_t r = 0; r < set.ranks(); ++r) {
    const Cursor& cursor = set.cursor(r);
    hash.Mix(cursor.joined.load() << 16 | cursor.join_told << 8 | cursor.unnamed);
  }
  // Taken out and put in again.
  for (const OutboxItem& item : set.outbox().TakeAll()) {
    hash.Mix(static_cast<uint64_t>(item.kind) << 32 | item.tensor.id);
    hash.Mix(item.tensor.generation);
    hash.Mix(static_cast<uint64_t>(item.value) << 32 | item.count);
    hash.Mix(item.error.message);
    if (!set.outbox().Put(item)) std::abort();
  }
  return hash.value();
}

uint64_t HostModel::Digest() const {
  Hash hash;
  hash.Mix(static_cast<uint64_t>(pauses_));
  for (int rank = 0; rank < views_.size(); ++rank) {
    const Rank& own = ranks_[rank];
    if (Leads(rank)) {
      hash.Mix(leaders_past_[rank]);
      hash.Mix(DigestOfSegment(rank));
    }
    hash.Mix(own.past);
    hash.Mix(own.step << 32 | own.taken);
    hash.Mix(group(rank).log().taken());
    hash.Mix(control(rank).cursor(control(rank).me()).words.load());
    hash.Mix(own.joined | own.closed << 1 | own.dead << 2 | own.pump_due << 3 |
             own.wait_begun << 4 | static_cast<uint64_t>(own.waits) << 8 | own.unnamed << 24);
    for (const Call& call : own.calls) {
      hash.Mix(call.name);
      hash.Mix(call.key.generation << 17 | call.key.id << 1 | (call.announced ? 1 : 0));
    }
    for (const std::string& name : own.again) hash.Mix(name);
    for (const auto& [name, id] : own.ids) hash.Mix(static_cast<uint64_t>(id.id) << 32 | id.id_version);
    for (const auto& [link, messages] : links_) {
      // Which messages they are follows from their senders' past.
      if (link.second == rank) hash.Mix(static_cast<uint64_t>(link.first) << 32 | messages.size());
    }
    hash.Mix(own.stuck_at);
  }
  return hash.value();
}

std::string HostModel::WrongAtEnd() const {
  if (std::ranges::any_of(ranks_, &Rank::dead)) return "";
  bool ends = false;
  for (int rank = 0; rank < views_.size(); ++rank) {
    const Rank& own = ranks_[rank];
    {std::printf("rank %d step %zu of %zu joined %d taken %zu stuck %lu now %lu again", rank, own.step, shape_.scripts[rank].size(), own.joined, own.taken, own.stuck_at, ProgressOfHost(rank)); for (auto& x: own.again) std::printf(" %s", x.c_str()); std::printf(" calls"); for (auto& x: own.calls) std::printf(" %s:%u.%lu", x.name.c_str(), x.key.id, x.key.generation);
     if (Leads(rank)) for (uint32_t id = shape_.few_ids ?  kNamedIds - shape_.few_ids : 0; id < control(rank).header().ids; ++id) { auto seen = control(rank).id(id).arrivals.load(); std::printf(" [%s %u v%u over %lu arrived %u last %ld bucket %u]", control(rank).NameOf(id).c_str(), id, seen.id_version(), seen.over(), seen.arrived(), (long)control(rank).id(id).last_decision.load(), control(rank).id(id).bucket.load()); } std::printf("\n");}
    for (const HostStep& step : shape_.scripts[rank]) ends = ends || static_cast<bool>(step.end);
  }
  for (int rank = 0; rank < views_.size(); ++rank) {
    const Rank& own = ranks_[rank];
    if (!own.closed && own.step != shape_.scripts[rank].size()) return "rank " + std::to_string(rank) + " waits for ever";
    if (!own.calls.empty() || !own.again.empty()) return "a call is never decided";
    if (own.joined) return "a join never ends";
    if (own.taken != log_.size()) return "a rank misses decisions";
    if (!control(rank).outbox().empty()) return "something is left in an outbox";
    if (views_.controller(rank).HoldsNews()) return "a leader keeps news";
  }
  for (int rank = 0; ends && rank < views_.size(); ++rank) {
    if (!ranks_[rank].closed) return "a rank does not hear of the set's end";
    if (!views_.controller(rank).Released()) return "a set is never released";
  }
  return "";
}

std::string HostModel::Show(const Action& action) {
  static constexpr const char* kNames[] = {"steps",  "announces", "submits again", "takes",
                                           "finishes", "pumps",   "unblocks",      "closes",
                                           "dies",   "hears",     "loses",         "all pause"};
  std::string text = "rank " + std::to_string(action.who) + " " +
                     kNames[static_cast<size_t>(action.kind)];
  if (action.kind == Kind::kDeliver || action.kind == Kind::kLose)
    text += " from " + std::to_string(action.from);
  return text;
}

}  // namespace horoacc::model
