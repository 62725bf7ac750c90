#include "negotiate/multi_host/multi_host_controller.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "negotiate/multi_host/eager.h"
#include "schedule/select.h"

namespace horoacc {
namespace {

std::optional<uint32_t> IndexOf(const std::vector<int>& ranks, int rank) {
  const auto found = std::ranges::find(ranks, rank);
  if (found == ranks.end()) return std::nullopt;
  return static_cast<uint32_t>(found - ranks.begin());
}

MultiHostTree TreeOf(const MultiHostController::Place& place, std::optional<uint32_t> member) {
  if (!member) return {};
  std::vector<int> hosts;
  for (const int rank : place.ranks) hosts.push_back(place.host_of[rank]);
  return TreeOver(hosts, *member);
}

WireWriter Begin(MultiHostMessage kind) {
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(kind));
  return writer;
}

// The question about a call or, without one, about the join; also the head of its answer.
WireWriter BeginWhoHas(const std::optional<CallName>& call) {
  WireWriter writer = Begin(MultiHostMessage::kWhoHas);
  writer.Put(static_cast<uint8_t>(call ? 0 : 1));
  if (call) Put(writer, *call);
  return writer;
}

std::optional<CallName> GetSubject(WireReader& reader) {
  if (reader.Get<uint8_t>() != 0) return std::nullopt;
  return GetCallName(reader);
}

}  // namespace

MultiHostController::MultiHostController(ControlMux& mux, Place place, SetSegment& control,
                                         const Doorbells& doorbells, const Settings& settings)
    : mux_(mux),
      place_(std::move(place)),
      member_(IndexOf(place_.ranks, place_.rank)),
      tree_(TreeOf(place_, member_)),
      sends_eager_(place_.ranks.size() > 1 &&
                   ForcedAlgorithm(schedule::Goal::kAllreduce, settings).empty()),
      eager_halves_(settings.reduction != "auto"),
      control_(control),
      doorbells_(doorbells),
      released_(place_.ranks.size()),
      left_(place_.ranks.size()) {
  if (!member_) return;
  if (tree_.parent) {
    aggregator_.emplace(tree_.subtree, kSubtreeTimeout);
  } else {
    root_.emplace(place_.ranks, settings.fusion_threshold);
  }
  mux_.Register(place_.set, [this](int source, std::span<const std::byte> payload) {
    return OnMessage(source, payload);
  });
}

MultiHostController::~MultiHostController() {
  if (member_) mux_.Unregister(place_.set);
}

Status MultiHostController::SendToAll(const WireWriter& writer) {
  for (const int rank : place_.ranks) {
    if (rank != place_.rank) HA_TRY(mux_.Send(place_.set, rank, writer.bytes()));
  }
  return {};
}

Result<std::optional<Decision>> MultiHostController::Next() {
  std::lock_guard lock(mutex_);
  if (decisions_.empty()) return std::optional<Decision>();
  std::optional<Decision> next = std::move(decisions_.front());
  decisions_.pop_front();
  return next;
}

Status MultiHostController::Finish(const Decision& decision) {
  (void)control_.FinishUpTo(decision.end, std::nullopt);
  return {};
}

SetEnd MultiHostController::Ended() {
  std::lock_guard lock(mutex_);
  return end_;
}

Status MultiHostController::Release() {
  std::lock_guard lock(mutex_);
  if (!end_ || !decisions_.empty() || std::exchange(release_told_, true)) return {};
  released_[*member_] = true;
  return SendToAll(Begin(MultiHostMessage::kReleased));
}

Status MultiHostController::SayLeft() {
  std::lock_guard lock(mutex_);
  left_[*member_] = true;
  return SendToAll(Begin(MultiHostMessage::kLeft));
}

bool MultiHostController::HasLeft(int rank) {
  std::lock_guard lock(mutex_);
  const std::optional<uint32_t> member = IndexOf(place_.ranks, rank);
  return member && left_[*member];
}

bool MultiHostController::Released() {
  std::lock_guard lock(mutex_);
  for (size_t m = 0; m < place_.ranks.size(); ++m) {
    if (!released_[m] && !place_.has_left(place_.ranks[m])) return false;
  }
  return true;
}

Status MultiHostController::OnMessage(int source, std::span<const std::byte> payload) {
  std::lock_guard lock(mutex_);
  WireReader reader(payload);
  const auto kind = static_cast<MultiHostMessage>(reader.Get<uint8_t>());
  const std::optional<uint32_t> member = IndexOf(place_.ranks, source);
  if (!member || member == member_) return Damaged(source);
  switch (kind) {
    case MultiHostMessage::kReleased:
      released_[*member] = true;
      return {};
    case MultiHostMessage::kLeft:
      left_[*member] = true;
      return {};
    case MultiHostMessage::kWhoHas:
      if (root_) return OnWhoHas(source, reader);
      return *member == 0 ? OnAttendance(reader) : Damaged(source);
    default:
      break;
  }
  if (member == tree_.parent) return FromAbove(payload);
  const auto child = std::ranges::find(tree_.children, *member, &MultiHostTree::Child::member);
  return child == tree_.children.end() ? Damaged(source) : FromBelow(*child, payload);
}

Status MultiHostController::OnWhoHas(int source, WireReader& reader) {
  const std::optional<CallName> call = GetSubject(reader);
  if (!reader.ok()) return Damaged(source);
  if (end_) return {};
  WireWriter writer = BeginWhoHas(call);
  Put(writer, call ? root_->WhoHas(*call) : root_->WhoHasJoined());
  return mux_.Send(place_.set, source, writer.bytes());
}

Status MultiHostController::OnAttendance(WireReader& reader) {
  const std::optional<CallName> call = GetSubject(reader);
  std::optional<Attendance> attendance = GetAttendance(reader);
  if (!reader.ok()) return Damaged(place_.ranks[0]);
  if (!call) {
    joins_ = std::move(attendance);
  } else if (const auto own = own_.find(*call); own != own_.end()) {
    own->second.attendance = std::move(attendance);
  }
  return {};
}

Result<std::optional<Attendance>> MultiHostController::WhoHas(std::optional<TensorKey> tensor) {
  std::lock_guard lock(mutex_);
  if (end_) return std::optional<Attendance>();
  std::optional<CallName> call;
  if (tensor) {
    const auto found = call_of_.find(tensor->id);
    if (found == call_of_.end() || own_[found->second].key.generation != tensor->generation)
      return std::optional<Attendance>();
    call = found->second;
  }
  if (root_) return call ? root_->WhoHas(*call) : root_->WhoHasJoined();
  HA_TRY(mux_.Send(place_.set, place_.ranks[0], BeginWhoHas(call).bytes()));
  return call ? own_[*call].attendance : joins_;
}

// The way up: calls and what concerns them, from a rank to the root.

Status MultiHostController::SendUp(const WireWriter& writer) {
  return mux_.Send(place_.set, place_.ranks[*tree_.parent], writer.bytes());
}

Result<Announced> MultiHostController::Announce(const Announcement& announcement) {
  std::lock_guard lock(mutex_);
  if (end_) return Announced::kTaken;  // nothing is decided any more; the driver fails the call
  IdEntry& entry = control_.id(announcement.id);
  const Arrivals seen = entry.arrivals.load(std::memory_order_acquire);
  if (!seen.Admits(announcement.id_version, announcement.generation))
    return Announced::kLookUpAgain;
  entry.last_decision.store(kUndecided, std::memory_order_relaxed);
  entry.arrivals.store(seen.Arrive(1), std::memory_order_release);

  CallName call{!announcement.name.empty(), std::string(announcement.name), announcement.number};
  if (call.named) call.number = 0;
  std::shared_ptr<const Request> request;
  if (const uint64_t* const number = numbers_.NumberOf(call);
      number && *numbers_.At(*number)->request == *announcement.request) {
    request = numbers_.At(*number)->request;
  } else {
    request = std::make_shared<const Request>(*announcement.request);
  }
  ReadySet ready_set;
  (void)ready_set.Add(request, {&*member_, 1});
  const bool may = sends_eager_ && (eager_halves_ || !HasHalves(*request));
  uint64_t eager = may ? EagerBytes(*request, place_.ranks.size()) : 0;
  if (eager_ + eager > kMaxEagerBytes / place_.ranks.size()) eager = 0;
  eager_ += eager;
  if (eager > 0) {
    ready_set.AddInput(*member_, std::make_shared<const std::vector<std::byte>>(
                                     PackTensors(*request, announcement.inputs)));
  }
  call_of_[announcement.id] = call;
  own_[call] = {
      {announcement.id, announcement.generation}, std::move(request), eager, std::nullopt};
  const Row& row = control_.row(0, announcement.id, announcement.generation);
  HA_TRY(Arrive(call, ready_set, decided_, {announcement.id, row.sequence, row.sync_round}));
  return Announced::kTaken;
}

Status MultiHostController::Arrive(const CallName& call, const ReadySet& ready_set, uint64_t seen,
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
                     place_.ranks[ready_set.groups()[0].members[0]]);
  }
  return arrived.news ? SendNews(*arrived.news) : Status();
}

Status MultiHostController::SendNews(const SubtreeAggregator::News& news) {
  WireWriter writer = Begin(MultiHostMessage::kReady);
  PutReady(writer, news.call, news.ready_set, news.whole, decided_, numbers_);
  return SendUp(writer);
}

// Counts the undecided calls of this rank, by the buckets that the root has told it of.
Status MultiHostController::Unblock(std::span<const uint32_t>) {
  std::lock_guard lock(mutex_);
  if (end_) return {};
  for (const auto& [bucket, witness] : buckets_.Partial(own_))
    HA_TRY(OnSplit(bucket, witness, decided_));
  return {};
}

// Many ranks may be blocked by one bucket, and each sends again and again. A second message about a
// bucket, of a rank that had taken no more decisions, brings nothing new: either the bucket is
// split by the first one, or that rank has a decision to take.
Status MultiHostController::OnSplit(uint32_t bucket, const CallName& witness, uint64_t seen) {
  if (root_) return Tell(root_->Split(bucket, witness, seen));
  const auto [said, fresh] = splits_.try_emplace(bucket, seen);
  if (!fresh && seen <= said->second) return {};
  said->second = seen;
  WireWriter writer = Begin(MultiHostMessage::kSplit);
  writer.Put(bucket);
  writer.Put(seen);
  Put(writer, witness);
  return SendUp(writer);
}

Status MultiHostController::Join(uint64_t unnamed) {
  std::lock_guard lock(mutex_);
  if (end_) return {};
  control_.cursor(0).joined.fetch_add(1, std::memory_order_release);  // for the stall watch
  joins_.reset();
  return OnJoined(*member_, unnamed);
}

// The calls that the member submitted before it joined have arrived before.
Status MultiHostController::OnJoined(uint32_t member, uint64_t unnamed) {
  if (root_) return Tell(root_->Joined(member, unnamed));
  WireWriter writer = Begin(MultiHostMessage::kJoined);
  writer.Put(member);
  writer.Put(unnamed);
  HA_TRY(SendUp(writer));
  for (const SubtreeAggregator::News& news : aggregator_->Join(member)) HA_TRY(SendNews(news));
  return {};
}

Status MultiHostController::Reject(TensorKey tensor, const Error& error) {
  std::lock_guard lock(mutex_);
  const auto call = call_of_.find(tensor.id);
  if (end_ || call == call_of_.end() || own_[call->second].key.generation != tensor.generation)
    return {};
  return OnReject(CallName(call->second), error);
}

// The root names the missing ranks in the error, so the calls held here go first.
Status MultiHostController::OnReject(const CallName& call, const Error& error) {
  if (root_) return Tell(root_->Reject(call, error));
  if (const auto news = aggregator_->Flush(call)) HA_TRY(SendNews(*news));
  WireWriter writer = Begin(MultiHostMessage::kReject);
  Put(writer, call);
  Put(writer, error);
  return SendUp(writer);
}

Status MultiHostController::OnEnd(SetEnd end) {
  SetEnd none;
  if (root_) control_.header().end.compare_exchange_strong(none, end);
  if (root_) return EndAll(end);
  WireWriter writer = Begin(MultiHostMessage::kEnd);
  writer.Put(end.wire());
  return SendUp(writer);
}

Status MultiHostController::Pump() {
  const SetEnd end = control_.header().end.load(std::memory_order_acquire);
  if (!member_ || (!end && (root_ || tree_.children.empty()))) return {};
  std::lock_guard lock(mutex_);
  if (end_) return {};
  if (end && !std::exchange(end_told_, true)) return OnEnd(end);
  if (root_ || !aggregator_->Holds()) return {};
  const int64_t now = NowNs();
  if (now < next_flush_ns_) return {};
  next_flush_ns_ = now + kSubtreeTimeout / 4;
  for (const SubtreeAggregator::News& news : aggregator_->FlushOld(now)) HA_TRY(SendNews(news));
  return {};
}

bool MultiHostController::HoldsNews() {
  if (!member_ || root_ || tree_.children.empty()) return false;
  std::lock_guard lock(mutex_);
  return !end_ && aggregator_->Holds();
}

Status MultiHostController::FromBelow(const MultiHostTree::Child& child,
                                      std::span<const std::byte> payload) {
  if (end_) return {};
  const int source = place_.ranks[child.member];
  WireReader reader(payload);
  switch (static_cast<MultiHostMessage>(reader.Get<uint8_t>())) {
    case MultiHostMessage::kReady: {
      const ReadyNews news = GetReady(reader, child.subtree, numbers_);
      return reader.ok() ? Arrive(news.call, news.ready_set, news.seen, {}) : Damaged(source);
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
      return reader.ok() ? OnReject(call, error) : Damaged(source);
    }
    case MultiHostMessage::kEnd: {
      const SetEnd end = SetEnd::FromWire(reader.Get<int32_t>());
      return reader.ok() ? OnEnd(end) : Damaged(source);
    }
    default:
      return Damaged(source);
  }
}

// The way down: the root's decisions, and how every rank takes them.

Status MultiHostController::SendDown(std::span<const std::byte> payload) {
  for (const MultiHostTree::Child& child : tree_.children)
    HA_TRY(mux_.Send(place_.set, place_.ranks[child.member], payload));
  return {};
}

// The root's.
Status MultiHostController::Tell(MultiHostRoot::Verdicts verdicts) {
  for (MultiHostDecision& verdict : verdicts) {
    if (place_.faults) HA_FAULT(*place_.faults, kDecide);
    WireWriter writer = Begin(MultiHostMessage::kDecision);
    Put(writer, verdict, numbers_);
    HA_TRY(SendDown(writer.bytes()));
    HA_TRY(Take(std::move(verdict)));
  }
  if (!verdicts.empty()) doorbells_.Ring(place_.local_rank, Urgency::kWork);
  return TellPlan();
}

Status MultiHostController::TellPlan() {
  const std::vector<BucketMembers<CallName>> changes = root_->TakePlanChanges();
  if (changes.empty()) return {};
  WireWriter writer = Begin(MultiHostMessage::kPlan);
  Put(writer, changes);
  for (const BucketMembers<CallName>& bucket : changes) buckets_.Set(bucket);
  return SendDown(writer.bytes());
}

// The root's: in the order of the decisions.
Status MultiHostController::EndAll(SetEnd end) {
  end_ = end;
  WireWriter writer = Begin(MultiHostMessage::kEnd);
  writer.Put(end.wire());
  return SendDown(writer.bytes());
}

Status MultiHostController::FromAbove(std::span<const std::byte> payload) {
  const int source = place_.ranks[*tree_.parent];
  WireReader reader(payload);
  switch (static_cast<MultiHostMessage>(reader.Get<uint8_t>())) {
    case MultiHostMessage::kDecision: {
      MultiHostDecision multi_host = GetMultiHostDecision(reader, numbers_);
      if (!reader.ok()) return Damaged(source);
      HA_TRY(SendDown(payload));
      return Take(std::move(multi_host));
    }
    case MultiHostMessage::kPlan: {
      const auto changes = GetBuckets<CallName>(reader, sizeof(uint8_t) + sizeof(uint32_t),
                                                [](WireReader& r) { return GetCallName(r); });
      if (!reader.ok()) return Damaged(source);
      HA_TRY(SendDown(payload));
      splits_.clear();
      for (const BucketMembers<CallName>& bucket : changes) buckets_.Set(bucket);
      return {};
    }
    case MultiHostMessage::kEnd: {
      const SetEnd end = SetEnd::FromWire(reader.Get<int32_t>());
      if (!reader.ok()) return Damaged(source);
      HA_TRY(SendDown(payload));
      end_ = end;
      SetEnd none;
      control_.header().end.compare_exchange_strong(none, end);
      return {};
    }
    default:
      return Damaged(source);
  }
}

// Puts this rank's own ids in, and numbers the calls that run.
Status MultiHostController::Take(MultiHostDecision multi_host) {
  Decision decision = std::move(multi_host.decision);
  decision.end = ++decided_;
  const bool failed = decision.kind == Decision::Kind::kError;
  if (decision.kind == Decision::Kind::kJoin) {
    control_.cursor(0).joined.fetch_add(1, std::memory_order_release);
    joins_.reset();
    if (aggregator_) aggregator_->EndJoin();
  }
  for (const CallName& call : multi_host.calls) {
    if (aggregator_ && failed) {
      aggregator_->Forget(call);
      rejected_[call] = decided_;
    }
    const auto own = own_.find(call);
    if (own == own_.end()) {
      if (failed || decision.partial) continue;
      return MakeError(ErrorKind::kSystem,
                       "a decision names a tensor that this rank has not submitted");
    }
    const TensorKey key = own->second.key;
    control_.id(key.id).last_decision.store(decided_, std::memory_order_relaxed);
    decision.ids.push_back(key.id);
    decision.generations.push_back(key.generation);
    if (decision.kind == Decision::Kind::kRun && !decision.partial) {
      rejected_.erase(call);  // all have submitted it since
      if (call.named && own->second.request->collective == Collective::kAllreduce)
        numbers_.Ran(call, std::move(own->second.request));
    }
    eager_ -= own->second.eager;
    call_of_.erase(key.id);
    own_.erase(own);
  }
  decisions_.push_back(std::move(decision));
  return {};
}

}  // namespace horoacc
