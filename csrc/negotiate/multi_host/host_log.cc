#include "negotiate/multi_host/host_log.h"

#include <algorithm>
#include <cstring>
#include <ranges>
#include <utility>

#include "negotiate/control_segment/assemble_reduce.h"

namespace horoacc {

HostLog::HostLog(HostGroup& group, SetSegment& control, const SetContext& context,
                 std::vector<uint32_t> members, EagerRule eager, NoteMemory memory)
    : group_(group),
      control_(control),
      context_(context),
      members_(std::move(members)),
      eager_rule_(eager),
      memory_(std::move(memory)),
      rounds_(group, control) {}

HostLog::~HostLog() {
  for (const auto& [end, note] : notes_) memory_.free(note);
}

// The way up.

CallName HostLog::NameOf(TensorKey key, uint32_t index) const {
  if (key.id < kNamedIds) return {true, control_.NameOf(key.id), 0};
  return {false, "", control_.row(index, key.id, key.generation).number};
}

std::optional<CallName> HostLog::CallOf(TensorKey key) const {
  const Arrivals seen = control_.id(key.id).arrivals.load(std::memory_order_acquire);
  const bool open = seen.open() == key.generation && seen.arrived() > 0;
  const bool closed = seen.over() == key.generation && control_.id(key.id).last_decision.load(
                                                           std::memory_order_acquire) == kUndecided;
  if (!open && !closed) return std::nullopt;
  const auto taken = taken_.find(key.id);
  if (taken != taken_.end() && taken->second == key.generation) return std::nullopt;
  for (uint32_t r = 0; r < context_.ranks; ++r) {
    if (control_.HasSubmitted(r, key)) return NameOf(key, r);
  }
  return std::nullopt;
}

// Of the ranks that are counted so far: a decision must not come before the arrivals that it counts
// on.
bool HostLog::IsCounted(uint32_t index, TensorKey key, bool closed) const {
  const Row& row = control_.row(index, key.id, key.generation);
  return closed ? control_.HasSubmitted(index, key)
                : row.counted.load(std::memory_order_acquire) == key.generation;
}

std::optional<HostLog::News> HostLog::NewsOf(TensorKey key, const CallNumbers& numbers) {
  const std::optional<CallName> call = CallOf(key);
  if (!call) return std::nullopt;
  const bool closed =
      control_.id(key.id).arrivals.load(std::memory_order_acquire).over() == key.generation;
  // Each rank has submitted it or has joined, and one of these lags: it is told of when that has
  // caught up, for until then the generation must stay open.
  const auto all_are_done = [&] {
    for (uint32_t r = 0; r < context_.ranks; ++r) {
      if (!IsCounted(r, key, closed) && !control_.HasJoined(r)) return false;
    }
    return true;
  };
  if (!closed && all_are_done()) return std::nullopt;
  Known& known = known_[*call];
  if (known.told.empty()) {
    known.key = key;
    known.told.resize(context_.ranks);
    IdEntry& entry = control_.id(key.id);
    if (const auto bucket = buckets_.Of(*call))
      entry.bucket.store(*bucket + 1, std::memory_order_relaxed);
  }
  News news{*call, {}, {}};
  const Row* first = nullptr;
  std::vector<uint32_t> told;
  Proposal proposal;
  for (uint32_t r = 0; r < context_.ranks; ++r) {
    if (known.told[r] || !IsCounted(r, key, closed)) continue;
    const Row& row = control_.row(r, key.id, key.generation);
    proposal = told.empty() ? row.proposal : proposal.With(row.proposal);
    known.told[r] = true;
    told.push_back(r);
    std::shared_ptr<const Request> request;
    const bool reduces = row.collective == static_cast<uint8_t>(Collective::kAllreduce);
    if (first && reduces && row.error == 0 && first->error == 0 &&
        row.signature == first->signature && row.on_gpu == first->on_gpu) {
      request = known.request;
    } else {
      request = std::make_shared<const Request>(
          control_.ReadRequest(r, key.id, key.generation, context_.memory[r]));
    }
    if (const uint64_t* const number = numbers.NumberOf(*call);
        number && request != known.request && *numbers.At(*number)->request == *request) {
      request = numbers.At(*number)->request;
    }
    if (!known.request) known.request = request;
    if (!first && request == known.request) first = &row;
    const uint32_t member = members_[r];
    if (member == 0) news.place = {key.id, row.sequence, row.sync_round, row.recurs};
    (void)news.ready_set.Add(request, {&member, 1});
  }
  if (told.empty()) return std::nullopt;
  news.ready_set.SetProposal(proposal);
  AddInputs(news, told, known);
  const bool shared =
      news.ready_set.groups()[0].request->on_gpu
          ? std::ranges::all_of(told,
                                [&](uint32_t r) {
                                  return control_.row(r, key.id, key.generation).stays_on_gpu != 0;
                                })
          : AllShared(control_, context_, key, told);
  if (!shared) news.ready_set.MarkPrivate();
  return news;
}

// The inputs of the ranks `told` go with the news, or their sum, if the call is eager and all lie
// in shared memory.
void HostLog::AddInputs(News& news, std::span<const uint32_t> told, Known& known) {
  if (news.ready_set.groups().size() != 1) return;
  const Request& request = *news.ready_set.groups()[0].request;
  const bool sums = eager_rule_.sums();
  const uint64_t bytes = eager_rule_.BytesOf(request) * (sums ? 1 : told.size());
  if (bytes == 0 || eager_ + bytes > kMostEagerBytes) return;
  if (sums && told.size() < context_.ranks) return;
  std::vector<std::vector<const std::byte*>> inputs;
  for (const uint32_t r : told) {
    std::vector<const std::byte*>& tensors = inputs.emplace_back();
    const Row& row = control_.row(r, known.key.id, known.key.generation);
    for (const TensorRow& tensor : TensorsOf(row, context_.memory[r])) {
      const bool empty = request.tensors[tensors.size()].count() == 0;
      if (tensor.input == kPrivate && !empty) return;
      tensors.push_back(empty ? nullptr : context_.memory[r] + tensor.input);
    }
  }
  eager_ += bytes;
  known.eager += bytes;
  if (sums) return news.ready_set.AddInput(eager_rule_.Sum(request, members_[0], inputs));
  for (size_t k = 0; k < told.size(); ++k)
    news.ready_set.AddInput(eager_rule_.Sum(request, members_[told[k]], {&inputs[k], 1}));
}

// The way down.

void HostLog::Forget(std::map<CallName, Known>::iterator call) {
  eager_ -= call->second.eager;
  known_.erase(call);
}

Status HostLog::Take(MultiHostDecision verdict, CallNumbers& numbers) {
  Untold entry;
  Decision& decision = entry.decision.emplace(std::move(verdict.decision));
  if (decision.kind == Decision::Kind::kError) {
    entry.calls = std::move(verdict.calls);
    untold_.push_back(std::move(entry));
    return {};
  }
  for (const CallName& call : verdict.calls) {
    const auto known = known_.find(call);
    if (known == known_.end()) {
      if (decision.partial) continue;
      return MakeError(ErrorKind::kSystem,
                       "a decision names a tensor that this host has not submitted");
    }
    taken_[known->second.key.id] = known->second.key.generation;
    decision.ids.push_back(known->second.key.id);
    entry.keys.push_back(known->second.key);
    if (!decision.partial && call.named &&
        known->second.request->collective == Collective::kAllreduce)
      numbers.Ran(call, std::move(known->second.request));
    Forget(known);
  }
  untold_.push_back(std::move(entry));
  return {};
}

Status HostLog::TakeUnordered(const CallName& call, Decision decision) {
  const auto known = known_.find(call);
  if (known == known_.end())
    return MakeError(ErrorKind::kSystem, "a call ran that this host has not submitted");
  const TensorKey key = known->second.key;
  Forget(known);
  taken_[key.id] = key.generation;
  decision.ids = {key.id};
  if (decision.run != 0) rounds_.Begin(call, key);
  untold_.push_back(
      {.decision = std::move(decision), .ordered = false, .keys = {key}, .calls = {call}});
  return {};
}

void HostLog::TakeDrain(const Grants::Grant& grant) {
  Decision drain;
  drain.kind = Decision::Kind::kDrain;
  drain.path = grant.path;
  drain.partial = true;  // the request goes with it
  drain.run = RunOf(grant.number, grant.begun + 1);
  drain.facts.resize(1);
  drain.facts[0].request = *grant.request;
  untold_.push_back({.decision = std::move(drain), .ordered = false});
}

bool HostLog::Hold(const CallName& call) {
  const std::optional<TensorKey> dropped = rounds_.Hold(call);
  if (!dropped) return true;
  taken_.erase(dropped->id);
  std::erase_if(untold_, [&](const Untold& entry) {
    return entry.decision && entry.decision->run != 0 && !entry.calls.empty() &&
           entry.calls[0] == call;
  });
  return false;
}

bool HostLog::IsRefused(TensorKey key) const {
  for (uint32_t r = 0; r < context_.ranks; ++r) {
    if (control_.HasSubmitted(r, key) && control_.row(r, key.id, key.generation).error != 0)
      return true;
  }
  return false;
}

Status HostLog::Publish(const std::function<Status()>& drain) {
  FreeNotes();
  while (!untold_.empty()) {
    const bool ends_calls =
        untold_.front().decision && untold_.front().decision->kind == Decision::Kind::kError;
    if (ends_calls) HA_TRY(drain());
    if (ends_calls && rounds_.IsCarriedOut(untold_.front().calls)) return {};
    const HostGroup::RingingLock lock(group_);
    HA_TRY(Status(lock.status()));
    if (ends_calls && !control_.outbox().empty()) continue;
    SetHeader& header = control_.header();
    if (!group_.log().HasRoom()) {
      header.leader_waits = 1;
      // The ranks that lag have to catch up. One may have done so before it was rung.
      if (control_.Starve()) group_.RingMembers({}, true);
      if (!group_.log().HasRoom()) return {};
    }
    header.leader_waits = 0;
    HA_TRY(PublishFirst());
  }
  return {};
}

Status HostLog::PublishFirst() {
  Untold entry = std::move(untold_.front());
  untold_.pop_front();
  SetHeader& header = control_.header();
  if (entry.end) {
    SetEnd none;
    header.end.compare_exchange_strong(none, entry.end);
    group_.RingMembers({}, true);
    return {};
  }
  if (entry.news) {
    Decision news;
    news.kind = Decision::Kind::kNews;
    HA_ASSIGN(const LogNote note, Keep(NoteOf(*entry.news)));
    group_.Publish(news, {}, note);
    return {};
  }
  Decision& decision = *entry.decision;
  if (decision.kind == Decision::Kind::kError) CloseCalls(entry.calls, entry);
  if (decision.kind == Decision::Kind::kJoin) group_.ResetJoins();
  LogNote note;
  if (decision.kind == Decision::Kind::kRun) {
    HA_ASSIGN(note, Keep(NoteOf(decision)));
    if (!decision.done()) {
      decision.slot = header.slots++;
      control_.slot(decision.slot).Reset(context_.ranks);
    }
  } else if (decision.kind == Decision::Kind::kDrain) {
    HA_ASSIGN(note, Keep(NoteOf(decision)));
  }
  for (const TensorKey& key : entry.keys) taken_.erase(key.id);
  if (entry.ordered) ++header.decided;
  group_.Publish(decision, entry.keys, note);
  if (decision.kind == Decision::Kind::kRun && decision.run != 0)
    rounds_.Publish(entry.calls[0], decision.slot);
  return {};
}

// No rank of this host that has not submitted a call by now takes part in it.
void HostLog::CloseCalls(const std::vector<CallName>& calls, Untold& entry) {
  for (const CallName& call : calls) {
    std::optional<TensorKey> key;
    if (const auto known = known_.find(call); known != known_.end()) {
      key = known->second.key;
      Forget(known);
    } else if (key = rounds_.EndDropped(call); !key) {
      const auto id = call.named ? control_.names().Find(call.name)
                                 : std::optional<uint32_t>(kNamedIds + call.number % kUnnamedIds);
      if (id) key = TensorKey{*id, control_.id(*id).arrivals.load().open()};
      if (key && CallOf(*key) != call) key.reset();
    }
    if (!key) continue;
    (void)control_.CloseGeneration(key->id, key->generation);
    entry.keys.push_back(*key);
    entry.decision->ids.push_back(key->id);
    entry.decision->generations.push_back(key->generation);
  }
}

Result<LogNote> HostLog::Keep(std::span<const std::byte> note) {
  if (note.empty()) return LogNote{};
  std::byte* const kept = memory_.allocate(note.size());
  if (!kept) {
    return MakeError(ErrorKind::kSystem,
                     "shared memory is exhausted: no room for a decision's sizes and results");
  }
  std::ranges::copy(note, kept);
  // The entry that it belongs to ends behind the log's present end.
  notes_.emplace_back(control_.header().log_words.load(std::memory_order_relaxed) + 1, kept);
  return LogNote{static_cast<uint64_t>(kept - context_.memory[0]), note.size()};
}

void HostLog::FreeNotes() {
  if (notes_.empty()) return;
  const uint64_t least = control_.LeastWordsFinished();
  for (; !notes_.empty() && notes_.front().first <= least; notes_.pop_front())
    memory_.free(notes_.front().second);
}

Status HostLog::SetBucket(const BucketMembers& bucket) {
  const std::vector<CallName> old = buckets_.Set(bucket);
  const SetSegment::Guard guard(control_);
  HA_TRY(Status(guard.status()));
  PlanState& plan = control_.plan();
  plan.buckets[bucket.index].count = static_cast<uint32_t>(bucket.members.size());
  ++*plan.version;
  const auto store = [&](const CallName& call, uint32_t value) {
    if (const auto id = control_.names().Find(call.name))
      control_.id(*id).bucket.store(value, std::memory_order_relaxed);
  };
  for (const CallName& call : old) {
    if (!buckets_.Of(call)) store(call, 0);
  }
  for (const CallName& call : bucket.members) store(call, bucket.index + 1);
  return {};
}

}  // namespace horoacc
