// The way down: what the root decides, and what every rank does with it.
#include <utility>

#include "negotiate/multi_host/multi_host_controller.h"

namespace horoacc {

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
  const std::vector<BucketCalls> changes = root_->PlanChanges();
  if (changes.empty()) return {};
  WireWriter writer = Begin(MultiHostMessage::kPlan);
  writer.Put(static_cast<uint32_t>(changes.size()));
  for (const BucketCalls& bucket : changes) {
    writer.Put(bucket.index);
    writer.Put(static_cast<uint32_t>(bucket.calls.size()));
    for (const CallName& call : bucket.calls) Put(writer, call);
    SetMembers(bucket);
  }
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
      std::vector<BucketCalls> changes(reader.GetCount(2 * sizeof(uint32_t)));
      for (BucketCalls& bucket : changes) {
        bucket.index = reader.Get<uint32_t>();
        bucket.calls.resize(reader.GetCount(sizeof(uint8_t) + sizeof(uint32_t)));
        for (CallName& call : bucket.calls) call = GetCallName(reader);
        if (bucket.index >= kNamedIds) reader.Fail();
      }
      if (!reader.ok()) return Damaged(source);
      HA_TRY(SendDown(payload));
      for (const BucketCalls& bucket : changes) SetMembers(bucket);
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

void MultiHostController::SetMembers(const BucketCalls& bucket) {
  splits_.clear();
  if (bucket.index >= bucket_calls_.size()) bucket_calls_.resize(bucket.index + 1);
  std::vector<CallName>& calls = bucket_calls_[bucket.index];
  for (const CallName& call : calls) {
    const auto found = bucket_of_.find(call);
    if (found != bucket_of_.end() && found->second == bucket.index) bucket_of_.erase(found);
  }
  calls = bucket.calls;
  for (const CallName& call : calls) bucket_of_[call] = bucket.index;
}

// Puts this rank's own ids in, and learns what goes by a number from now on.
Status MultiHostController::Take(MultiHostDecision multi_host) {
  Decision decision = std::move(multi_host.decision);
  decision.end = ++decided_;
  const bool failed = decision.kind == Decision::Kind::kError;
  if (decision.kind == Decision::Kind::kJoin) {
    control_.cursor(0).joined.fetch_add(1, std::memory_order_release);
    joins_.reset();
    if (branch_) branch_->EndJoin();
  }
  for (const CallName& call : multi_host.calls) {
    if (branch_ && failed) {
      branch_->Forget(call);
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
