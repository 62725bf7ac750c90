// The way up: what ranks have submitted, and what concerns it, from a rank to the root.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "negotiate/multi_host/eager.h"
#include "negotiate/multi_host/multi_host_controller.h"

namespace horoacc {

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
  const bool may = carries_ && (carries_halves_ || !HasHalves(*request));
  uint64_t eager = may ? EagerBytes(*request, place_.ranks.size()) : 0;
  if (eager_ + eager > kMaxEagerBytes / place_.ranks.size()) eager = 0;
  eager_ += eager;
  if (eager > 0) {
    ready_set.Carry(*member_, std::make_shared<const std::vector<std::byte>>(
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
  // It was on its way while the call was rejected: its rank learns of that by itself.
  if (const auto rejected = rejected_.find(call);
      rejected != rejected_.end() && seen < rejected->second) {
    return {};
  }
  const SubtreeAggregator::Arrived arrived = branch_->Arrive(call, ready_set, NowNs());
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

// What this rank has submitted and what is not decided counts, as far as it is told what buckets
// there are.
Status MultiHostController::Unblock(std::span<const uint32_t>) {
  std::lock_guard lock(mutex_);
  if (end_) return {};
  std::map<uint32_t, std::pair<size_t, const CallName*>> touched;
  for (const auto& [call, own] : own_) {
    const auto bucket = bucket_of_.find(call);
    if (bucket == bucket_of_.end()) continue;
    auto& [calls, witness] = touched[bucket->second];
    ++calls;
    witness = &call;
  }
  std::vector<std::pair<uint32_t, CallName>> partial;  // decisions may empty own_ meanwhile
  for (const auto& [bucket, here] : touched) {
    if (here.first < bucket_calls_[bucket].size()) partial.emplace_back(bucket, *here.second);
  }
  for (const auto& [bucket, witness] : partial) HA_TRY(OnSplit(bucket, witness, decided_));
  return {};
}

// Many ranks may be blocked by one bucket, and each says so again and again. What was said of it by
// a rank that had taken as many decisions brings nothing new: either it was true, and the bucket is
// split, or the rank has a decision to take.
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

// What the member had submitted before has come before.
Status MultiHostController::OnJoined(uint32_t member, uint64_t unnamed) {
  if (root_) return Tell(root_->Joined(member, unnamed));
  WireWriter writer = Begin(MultiHostMessage::kJoined);
  writer.Put(member);
  writer.Put(unnamed);
  HA_TRY(SendUp(writer));
  for (const SubtreeAggregator::News& news : branch_->Join(member)) HA_TRY(SendNews(news));
  return {};
}

Status MultiHostController::Reject(TensorKey tensor, const Error& error) {
  std::lock_guard lock(mutex_);
  const auto call = call_of_.find(tensor.id);
  if (end_ || call == call_of_.end() || own_[call->second].key.generation != tensor.generation)
    return {};
  return OnReject(CallName(call->second), error);
}

// The root says who is missing: so what is held here goes first.
Status MultiHostController::OnReject(const CallName& call, const Error& error) {
  if (root_) return Tell(root_->Reject(call, error));
  if (const auto news = branch_->Flush(call)) HA_TRY(SendNews(*news));
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
  if (root_ || !branch_->Holds()) return {};
  const int64_t now = NowNs();
  if (now < next_flush_ns_) return {};
  next_flush_ns_ = now + kBranchTimeout / 4;
  for (const SubtreeAggregator::News& news : branch_->FlushOld(now)) HA_TRY(SendNews(news));
  return {};
}

bool MultiHostController::HoldsNews() {
  if (!member_ || root_ || tree_.children.empty()) return false;
  std::lock_guard lock(mutex_);
  return !end_ && branch_->Holds();
}

Status MultiHostController::FromBelow(const MultiHostTree::Child& child,
                                      std::span<const std::byte> payload) {
  if (end_) return {};
  const int source = place_.ranks[child.member];
  WireReader reader(payload);
  switch (static_cast<MultiHostMessage>(reader.Get<uint8_t>())) {
    case MultiHostMessage::kReady:
      return OnReady(child, reader);
    case MultiHostMessage::kJoined: {
      const auto member = reader.Get<uint32_t>();
      const auto unnamed = reader.Get<uint64_t>();
      if (!reader.ok() || !std::ranges::binary_search(child.branch, member)) return Damaged(source);
      return OnJoined(member, unnamed);
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

Status MultiHostController::OnReady(const MultiHostTree::Child& child, WireReader& reader) {
  const ReadyNews news = GetReady(reader, child.branch, numbers_);
  if (!reader.ok()) return Damaged(place_.ranks[child.member]);
  return Arrive(news.call, news.ready_set, news.seen, {});
}

}  // namespace horoacc
