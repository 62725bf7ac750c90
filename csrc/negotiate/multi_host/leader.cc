#include "negotiate/multi_host/leader.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace horoacc {
namespace {

WireWriter RejectionOf(MultiHostMessage kind, const CallName& call, const Error& error) {
  WireWriter writer = Begin(kind);
  Put(writer, call);
  Put(writer, error);
  return writer;
}

WireWriter EndOf(SetEnd end) {
  WireWriter writer = Begin(MultiHostMessage::kEnd);
  writer.Put(end.wire());
  return writer;
}

}  // namespace

Leader::Leader(ControlMux& mux, Place place, HostGroup& group, SetSegment& control,
               const SetContext& context, EagerRule eager, NoteMemory memory)
    : mux_(mux),
      place_(std::move(place)),
      group_(group),
      control_(control),
      log_(group, control, context, place_.tree.locals, eager, std::move(memory)),
      links_(mux, place_.set, place_.ranks, place_.tree),
      grants_(links_, log_, root_),
      questions_(links_, log_, root_) {
  if (place_.tree.parent) {
    aggregator_.emplace(place_.tree.subtree, kSubtreeTimeout);
  } else {
    root_.emplace(place_.ranks, place_.fusion_threshold, place_.composes, place_.grants,
                  place_.nccl);
  }
  if (place_.tree.hosts == 2) {
    exchange_.emplace();
    for (uint32_t member = 0; member < place_.ranks.size(); ++member) {
      if (!std::ranges::binary_search(place_.tree.locals, member)) peers_.push_back(member);
    }
  }
  child_seen_.resize(place_.tree.children.size());
  mux_.Register(place_.set, [this](int source, std::span<const std::byte> payload) {
    return OnMessage(source, payload);
  });
}

Leader::~Leader() { mux_.Unregister(place_.set); }

Status Leader::Pump() {
  std::lock_guard lock(mutex_);
  if (!control_.outbox().empty()) HA_TRY(TakeOutbox());
  if (aggregator_ && !ended_ && aggregator_->Holds()) {
    if (const int64_t now = NowNs(); now >= next_flush_ns_) {
      next_flush_ns_ = now + kSubtreeTimeout / 4;
      for (const SubtreeAggregator::News& news : aggregator_->FlushOld(now)) HA_TRY(SendNews(news));
    }
  }
  if (grants_.HoldsItems()) HA_TRY(TakePutOff());
  HA_TRY(Settle());
  return grants_.AskForSlots();
}

bool Leader::HoldsNews() {
  std::lock_guard lock(mutex_);
  return log_.waits() || !control_.outbox().empty() || grants_.HoldsItems() ||
         (aggregator_ && !ended_ && aggregator_->Holds());
}

Status Leader::Settle() {
  return log_.Publish([this] { return TakeOutbox(); });
}

Status Leader::OnMessage(int source, std::span<const std::byte> payload) {
  std::lock_guard lock(mutex_);
  const auto is_source = [&](const MultiHostTree::Child& child) {
    return links_.GlobalRankOf(child.leader) == source;
  };
  const auto child = std::ranges::find_if(place_.tree.children, is_source);
  if (child != place_.tree.children.end()) {
    HA_TRY(FromBelow(*child, payload));
  } else if (place_.tree.parent && links_.GlobalRankOf(*place_.tree.parent) == source) {
    HA_TRY(FromAbove(payload));
  } else {
    return Damaged(source);
  }
  if (grants_.TakeSettled()) {
    HA_TRY(TakePutOff());
    if (const std::optional<SetEnd> end = grants_.Resume()) HA_TRY(OnEnd(*end));
  }
  return Settle();
}

Status Leader::TakeOutbox() {
  std::vector<OutboxItem> items;
  {
    const SetSegment::Guard guard(control_);
    HA_TRY(Status(guard.status()));
    items = control_.outbox().TakeAll();
  }
  for (const OutboxItem& item : items) HA_TRY(TakeItem(item));
  return {};
}

Status Leader::TakeItem(const OutboxItem& item) {
  using Kind = OutboxItem::Kind;
  if (item.kind == Kind::kReleased) return OnReleased();
  if (ended_ || ending_) return {};
  HA_ASSIGN(const bool put_off, grants_.PutsOff(item));
  if (put_off) return {};
  switch (item.kind) {
    case Kind::kReady:
    case Kind::kWaiting:
      return OnNews(item.tensor);
    case Kind::kJoined:
      return OnJoined(place_.tree.locals[item.value], item.count);
    case Kind::kSplit:
      return OnSplit(item.value, {true, control_.NameOf(item.tensor.id), 0}, item.count);
    case Kind::kReject: {
      // The root names the missing ranks in the error, so the ranks that are here go first.
      const std::optional<CallName> call = log_.CallOf(item.tensor);
      if (!call) return {};
      HA_TRY(OnNews(item.tensor));
      return OnOwnReject(*call, item.error);
    }
    case Kind::kEnd:
      return std::exchange(end_told_, true)
                 ? Status()
                 : OnEnd(SetEnd::FromWire(static_cast<int32_t>(item.value)));
    case Kind::kAsk: {
      const std::optional<CallName> call = log_.CallOf(item.tensor);
      if (!call) return {};
      HA_TRY(OnNews(item.tensor));
      return questions_.Ask(call, item.tensor);
    }
    case Kind::kAskJoin:
      return questions_.Ask(std::nullopt, std::nullopt);
    case Kind::kReleased:
      break;
  }
  return {};
}

// Tells of dropped calls again, once their runs are over here, and then takes what waited for that.
Status Leader::TakePutOff() {
  for (const TensorKey& key : log_.rounds().TakeDropped()) {
    if (!ended_ && !ending_) HA_TRY(OnNews(key));
  }
  for (const OutboxItem& item : grants_.TakeItems()) HA_TRY(TakeItem(item));
  return {};
}

// The way up: calls and what concerns them, from a host to the root.

Status Leader::OnNews(TensorKey key) {
  const std::optional<HostLog::News> news = log_.NewsOf(key, numbers_);
  if (!news) return {};
  HA_ASSIGN(const bool begun, grants_.BeginRound(*news));
  if (begun) return {};
  if (exchange_ &&
      DirectExchange::Fits(news->call, news->ready_set, place_.tree.locals.size(), numbers_))
    return OnDirectNews(*news);
  return Arrive(news->call, news->ready_set, log_.published(), news->place);
}

// The other host gets the inputs in any case. If the root's host is first, the root must know of it
// for questions, and if the other host does not offer the call so, for its decision.
Status Leader::OnDirectNews(const HostLog::News& news) {
  const uint64_t seen = log_.published();
  const auto rejected = rejected_.find(news.call);
  if (root_ ? root_->IsOver(news.call, seen)
            : rejected != rejected_.end() && seen < rejected->second)
    return {};
  WireWriter writer = Begin(root_ ? MultiHostMessage::kExchange : MultiHostMessage::kReady);
  PutReady(writer, news.call, news.ready_set, true, decided_, numbers_, true);
  HA_TRY(links_.Send(peers_.front(), writer.bytes()));
  const auto both = exchange_->Offer(DirectExchange::Side::kOwn, news.call, news.ready_set);
  if (both) return RunDirect(news.call, *both);
  return root_ ? Tell(root_->Ready(news.call, news.ready_set, seen, news.place)) : Status();
}

Status Leader::OnPeersNews(const ReadyNews& news) {
  if (root_ && root_->IsOver(news.call, news.seen)) return {};
  const auto both = exchange_->Offer(DirectExchange::Side::kPeer, news.call, news.ready_set);
  if (both) return RunDirect(news.call, *both);
  return root_ && !ending_ ? Arrive(news.call, news.ready_set, news.seen, {}) : Status();
}

Status Leader::RunDirect(const CallName& call, const ReadySet& both) {
  if (root_ && place_.faults) HA_FAULT(*place_.faults, kDecide);
  std::vector<std::byte> result = ReduceEager(both, place_.ranks.size());
  if (result.empty() && both.groups()[0].request->collective != Collective::kBarrier)
    return MakeError(ErrorKind::kSystem, "two hosts exchanged inputs that do not fit");
  Decision decision;
  decision.path = Path::kEager;
  decision.facts.push_back({.result = std::move(result), .proposal = both.proposal()});
  HA_TRY(log_.TakeUnordered(call, std::move(decision)));
  // The next wait for the call's bucket is another one.
  splits_.clear();
  if (aggregator_) rejected_.erase(call);  // all have submitted it since
  return root_ && !ending_ ? Tell(root_->RanAlone(call)) : Status();
}

Status Leader::Arrive(const CallName& call, const ReadySet& ready_set, uint64_t seen,
                      const RootPlace& place) {
  if (root_) return Tell(root_->Ready(call, ready_set, seen, place));
  // The message was on its way while the call was rejected: its rank learns of that by itself.
  if (const auto rejected = rejected_.find(call);
      rejected != rejected_.end() && seen < rejected->second) {
    return {};
  }
  const SubtreeAggregator::Arrived arrived = aggregator_->Arrive(call, ready_set, NowNs());
  if (!arrived.fits) {
    return MakeError(ErrorKind::kSystem, "a control message tells again of a call",
                     links_.GlobalRankOf(ready_set.groups()[0].members[0]));
  }
  return arrived.news ? SendNews(*arrived.news) : Status();
}

Status Leader::SendNews(const SubtreeAggregator::News& news) {
  WireWriter writer = Begin(MultiHostMessage::kReady);
  PutReady(writer, news.call, news.ready_set, news.whole, decided_, numbers_);
  return links_.SendUp(writer);
}

// Many ranks may be blocked by one bucket, and each asks again and again. A second message about a
// bucket, of a rank that had seen no more decisions, brings nothing new: either the bucket is split
// by the first one, or that rank has a decision to take.
Status Leader::OnSplit(uint32_t bucket, const CallName& witness, uint64_t seen) {
  if (root_) return Tell(root_->Split(bucket, witness, seen));
  const auto [said, fresh] = splits_.try_emplace(bucket, seen);
  if (!fresh && seen <= said->second) return {};
  said->second = seen;
  WireWriter writer = Begin(MultiHostMessage::kSplit);
  writer.Put(bucket);
  writer.Put(seen);
  Put(writer, witness);
  return links_.SendUp(writer);
}

// The calls that waited only for the member go first: once all have joined, the join is over.
Status Leader::OnJoined(uint32_t member, uint64_t unnamed) {
  if (root_) {
    // Rounds that others have begun, or begin, wait for its host.
    HA_TRY(grants_.AskToRevoke());
    return Tell(root_->Joined(member, unnamed));
  }
  for (const SubtreeAggregator::News& news : aggregator_->Join(member)) HA_TRY(SendNews(news));
  WireWriter writer = Begin(MultiHostMessage::kJoined);
  writer.Put(member);
  writer.Put(unnamed);
  return links_.SendUp(writer);
}

// The other host may have run a call that the root has offered to it: then its offer is on its way.
// Otherwise it gives the call back.
Status Leader::OnOwnReject(const CallName& call, const Error& error) {
  if (!root_ || !exchange_ || !exchange_->HasOffered(call)) return OnReject(call, error);
  const std::optional<uint64_t> question = exchange_->Withdraw(call);
  if (!question) return {};
  WireWriter writer = RejectionOf(MultiHostMessage::kWithdraw, call, error);
  writer.Put(*question);
  return links_.SendDown(writer.bytes());
}

// A host that rejects a call has told of a part of it first, and then does not run it directly. A
// rejection that came too late for the last round says nothing of this one.
bool Leader::MayRun(const CallName& call) const {
  if (!exchange_ || !root_ || !exchange_->HasOffered(call)) return false;
  return !root_->HasAny(call, peers_);
}

// The root names the missing ranks in the error, so the calls held here go first.
Status Leader::OnReject(const CallName& call, const Error& error) {
  if (root_) return Tell(root_->Reject(call, error));
  if (const auto news = aggregator_->Flush(call)) HA_TRY(SendNews(*news));
  return links_.SendUp(RejectionOf(MultiHostMessage::kReject, call, error));
}

Status Leader::OnEnd(SetEnd end) {
  if (!root_) return links_.SendUp(EndOf(end));
  if (ended_ || ending_) return {};
  HA_ASSIGN(const bool put_off, grants_.PutsOff(end));
  if (put_off) return {};
  if (!exchange_ || !exchange_->HasOffered()) return TakeEnd(end);
  // What the other host has run before it hears of the end must run here, too.
  ending_ = end;
  return links_.SendDown(EndOf(end).bytes());
}

// Of this host, or of a child with all below it.
Status Leader::OnReleased() {
  if (++released_ <= place_.tree.children.size()) return {};
  return root_ ? TakeReleased() : links_.SendUp(Begin(MultiHostMessage::kReleased));
}

Status Leader::FromBelow(const MultiHostTree::Child& child, std::span<const std::byte> payload) {
  const int source = links_.GlobalRankOf(child.leader);
  WireReader reader(payload);
  const auto kind = static_cast<MultiHostMessage>(reader.Get<uint8_t>());
  if (kind == MultiHostMessage::kReleased) return OnReleased();
  if (ended_) return {};
  if (ending_ && kind == MultiHostMessage::kEnded) {
    ended_ = true;
    log_.TakeEnd(*ending_);
    return {};
  }
  if (ending_ && kind != MultiHostMessage::kReady && kind != MultiHostMessage::kGivenBack)
    return {};
  switch (kind) {
    case MultiHostMessage::kReady: {
      const ReadyNews news = GetReady(reader, child.subtree, numbers_);
      if (!reader.ok()) return Damaged(source);
      child_seen_[&child - place_.tree.children.data()] = news.seen;
      if (ending_ && !(news.direct && exchange_->HasOffered(news.call))) return {};
      if (exchange_ && news.direct) return OnPeersNews(news);
      return Arrive(news.call, news.ready_set, news.seen, {});
    }
    case MultiHostMessage::kJoined: {
      const auto member = reader.Get<uint32_t>();
      const auto unnamed = reader.Get<uint64_t>();
      const bool below = std::ranges::binary_search(child.subtree, member);
      return reader.ok() && below ? OnJoined(member, unnamed) : Damaged(source);
    }
    case MultiHostMessage::kSplit: {
      const auto bucket = reader.Get<uint32_t>();
      const auto seen = reader.Get<uint64_t>();
      const CallName witness = GetCallName(reader);
      return reader.ok() ? OnSplit(bucket, witness, seen) : Damaged(source);
    }
    case MultiHostMessage::kReject: {
      const CallName call = GetCallName(reader);
      const Error error = GetError(reader);
      if (!reader.ok()) return Damaged(source);
      return MayRun(call) ? Status() : OnReject(call, error);
    }
    case MultiHostMessage::kGivenBack: {
      const CallName call = GetCallName(reader);
      const Error error = GetError(reader);
      const auto question = reader.Get<uint64_t>();
      if (!reader.ok() || !exchange_) return Damaged(source);
      if (!exchange_->IsGivenBack(call, question)) return {};
      exchange_->Forget(call);
      return ending_ ? Status() : OnReject(call, error);
    }
    case MultiHostMessage::kEnd: {
      const SetEnd end = SetEnd::FromWire(reader.Get<int32_t>());
      return reader.ok() && end ? OnEnd(end) : Damaged(source);
    }
    case MultiHostMessage::kWhoHas:
      return questions_.FromBelow(reader, child.leader);
    default:
      return grants_.FromBelow(kind, reader, source);
  }
}

// The way down: the root's decisions, and how every host takes them.

// The root's.
Status Leader::Tell(MultiHostRoot::Verdicts verdicts) {
  for (MultiHostDecision& verdict : verdicts) {
    if (place_.faults) HA_FAULT(*place_.faults, kDecide);
    WireWriter writer = Begin(MultiHostMessage::kDecision);
    Put(writer, verdict, numbers_);
    HA_TRY(links_.SendDown(writer.bytes()));
    HA_TRY(Take(std::move(verdict)));
  }
  return TellPlan();
}

Status Leader::TellPlan() {
  const std::vector<BucketMembers> changes = root_->TakePlanChanges();
  if (changes.empty()) return {};
  WireWriter writer = Begin(MultiHostMessage::kPlan);
  Put(writer, changes);
  for (const BucketMembers& bucket : changes) HA_TRY(log_.SetBucket(bucket));
  return links_.SendDown(writer.bytes());
}

Status Leader::TakeEnd(SetEnd end) {
  ended_ = true;
  log_.TakeEnd(end);
  if (exchange_ && !root_) return links_.SendUp(Begin(MultiHostMessage::kEnded));
  return links_.SendDown(EndOf(end).bytes());
}

Status Leader::TakeReleased() {
  control_.header().all_released.store(1, std::memory_order_release);
  {
    const HostGroup::RingingLock lock(group_);
    HA_TRY(Status(lock.status()));
    group_.RingMembers({}, false);
  }
  return links_.SendDown(Begin(MultiHostMessage::kReleased).bytes());
}

Status Leader::FromAbove(std::span<const std::byte> payload) {
  const int source = links_.GlobalRankOf(*place_.tree.parent);
  WireReader reader(payload);
  const auto kind = static_cast<MultiHostMessage>(reader.Get<uint8_t>());
  switch (kind) {
    case MultiHostMessage::kDecision: {
      MultiHostDecision verdict = GetMultiHostDecision(reader, numbers_);
      if (!reader.ok()) return Damaged(source);
      HA_TRY(links_.SendDown(payload));
      return Take(std::move(verdict));
    }
    case MultiHostMessage::kExchange: {
      const ReadyNews news = GetReady(reader, peers_, numbers_);
      return reader.ok() && exchange_ ? OnPeersNews(news) : Damaged(source);
    }
    case MultiHostMessage::kWithdraw: {
      const CallName call = GetCallName(reader);
      const Error error = GetError(reader);
      const auto question = reader.Get<uint64_t>();
      if (!reader.ok() || !exchange_) return Damaged(source);
      if (!exchange_->GiveBack(call)) return {};
      if (const auto news = aggregator_->Flush(call)) HA_TRY(SendNews(*news));
      WireWriter writer = RejectionOf(MultiHostMessage::kGivenBack, call, error);
      writer.Put(question);
      return links_.SendUp(writer);
    }
    case MultiHostMessage::kPlan: {
      const auto changes = GetBuckets(reader);
      if (!reader.ok()) return Damaged(source);
      HA_TRY(links_.SendDown(payload));
      splits_.clear();
      for (const BucketMembers& bucket : changes) HA_TRY(log_.SetBucket(bucket));
      return {};
    }
    case MultiHostMessage::kEnd: {
      const SetEnd end = SetEnd::FromWire(reader.Get<int32_t>());
      return reader.ok() && end ? TakeEnd(end) : Damaged(source);
    }
    case MultiHostMessage::kReleased:
      return TakeReleased();
    case MultiHostMessage::kWhoHas:
      return questions_.FromAbove(reader);
    default:
      return grants_.FromAbove(kind, reader, source);
  }
}

Status Leader::Take(MultiHostDecision verdict) {
  ++decided_;
  if (aggregator_ && verdict.decision.kind == Decision::Kind::kJoin) aggregator_->EndJoin();
  if (verdict.decision.kind == Decision::Kind::kError) {
    const uint64_t seen = LeastSeen();
    std::erase_if(rejected_, [&](const auto& one) { return one.second <= seen; });
    if (root_) root_->ForgetOver(seen);
  }
  for (const CallName& call : verdict.calls) {
    if (exchange_) exchange_->Forget(call);
    if (!aggregator_) continue;
    if (verdict.decision.kind == Decision::Kind::kError) {
      aggregator_->Forget(call);
      rejected_[call] = decided_;
    } else if (!verdict.decision.partial) {
      rejected_.erase(call);  // all have submitted it since
    }
  }
  const uint64_t granted = verdict.decision.grant;
  const Path path = verdict.decision.path;
  const CallName call = granted != 0 ? verdict.calls[0] : CallName();
  HA_TRY(log_.Take(std::move(verdict), numbers_));
  if (const uint64_t* const number = granted != 0 ? numbers_.NumberOf(call) : nullptr)
    grants_.Add({granted, call, numbers_.At(*number)->request, path});
  return {};
}

}  // namespace horoacc
