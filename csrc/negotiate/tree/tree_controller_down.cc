// The way down: what the root tells, and what every rank does with it.
#include <algorithm>
#include <utility>

#include "negotiate/tree/tree_controller.h"
#include "negotiate/tree/tree_messages.h"

namespace horoacc {

Status TreeController::Tell(TreeRoot::Verdicts verdicts) {
  for (;;) {
    for (Decision& decision : verdicts) HA_TRY(Publish(std::move(decision)));
    HA_TRY(PublishPlan());
    if (!root_->starving()) break;
    if (control_.Starve()) {  // whoever lags has to catch up
      for (uint32_t r = 0; r < context_.ranks; ++r)
        doorbells_.Ring(static_cast<int>(control_.local(r)), Urgency::kWork);
    }
    verdicts = root_->Retry();
    if (verdicts.empty()) return {};
  }
  control_.header().starved.store(0, std::memory_order_relaxed);
  return {};
}

Status TreeController::Publish(Decision decision) {
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(TreeMessage::kDecision));
  PutKind(writer, decision);
  writer.Put(decision.slot);
  Put(writer, MakeError(decision.error, decision.text, decision.culprit));
  writer.Put(static_cast<uint32_t>(decision.ids.size()));
  for (const uint32_t id : decision.ids) writer.Put(id);
  for (const uint64_t generation : decision.generations) writer.Put(generation);
  writer.Put(static_cast<int32_t>(decision.last_joined));
  writer.Put(decision.unnamed);
  HA_TRY(SendDown(writer.bytes()));
  bool work = decision.kind != Decision::Kind::kRun || !decision.done();
  for (const uint32_t id : decision.ids) {
    const auto own = own_.find(id);
    work = work ||
           (own != own_.end() && control_.row(context_.me, id, own->second.generation).notify != 0);
    control_.id(id).last_decision.store(decided_ + 1, std::memory_order_relaxed);
  }
  HA_TRY(Take(std::move(decision)));
  doorbells_.Ring(static_cast<int>(control_.local(context_.me)),
                  work ? Urgency::kWork : Urgency::kQuiet);
  return {};
}

Status TreeController::PublishPlan() {
  std::vector<BucketMembers> changes = root_->PlanChanges();
  if (changes.empty()) return {};
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(TreeMessage::kPlan));
  writer.Put(static_cast<uint32_t>(changes.size()));
  for (BucketMembers& bucket : changes) {
    writer.Put(bucket.index);
    writer.Put(static_cast<uint32_t>(bucket.ids.size()));
    for (const uint32_t id : bucket.ids) writer.Put(id);
    SetMembers(std::move(bucket));
  }
  return SendDown(writer.bytes());
}

Status TreeController::PublishEnd() {
  const SetEnd end = control_.header().end.load(std::memory_order_acquire);
  if (!end || end_) return {};
  end_ = end;
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(TreeMessage::kEnd));
  writer.Put(end.wire());
  return SendDown(writer.bytes());
}

Status TreeController::Pump() {
  if (!root_) return {};
  std::lock_guard lock(mutex_);
  if (root_->starving()) HA_TRY(Tell(root_->Retry()));
  return PublishEnd();
}

Status TreeController::SendDown(std::span<const std::byte> payload) {
  for (const int child : Children()) HA_TRY(mux_.Send(process_set_, child, payload));
  return {};
}

Status TreeController::OnDecision(WireReader& reader, std::span<const std::byte> payload) {
  Decision decision;
  GetKind(reader, decision);
  decision.slot = reader.Get<uint64_t>();
  const Error error = GetError(reader);
  decision.error = error.kind;
  decision.culprit = error.culprit;
  decision.text = error.message;
  const uint32_t count = reader.GetCount(sizeof(uint32_t));
  for (uint32_t k = 0; k < count; ++k) decision.ids.push_back(reader.Get<uint32_t>());
  if (decision.kind == Decision::Kind::kError) {
    for (uint32_t k = 0; k < count && reader.ok(); ++k)
      decision.generations.push_back(reader.Get<uint64_t>());
  }
  decision.last_joined = reader.Get<int32_t>();
  decision.unnamed = reader.Get<uint64_t>();
  const bool possible = IsPossible(decision) &&
                        std::ranges::all_of(decision.ids, [](uint32_t id) { return id < kIds; });
  if (!reader.ok() || !possible) return Damaged(root_ ? -1 : Parent());
  HA_TRY(SendDown(payload));
  return Take(std::move(decision));
}

Status TreeController::Take(Decision decision) {
  if (decision.kind == Decision::Kind::kJoin) {
    joined_ = 0;
    unnamed_ = 0;
    control_.cursor(context_.me).joined.fetch_add(1, std::memory_order_release);
  }
  for (size_t k = 0; k < decision.ids.size(); ++k) {
    const uint32_t id = decision.ids[k];
    const auto own = own_.find(id);
    if (decision.kind == Decision::Kind::kRun && decision.partial) {
      // Ranks that took no part do not know the request: it travels whole the next time.
      known_.erase(id);
      if (own != own_.end()) own_.erase(own);
      continue;
    }
    if (decision.kind == Decision::Kind::kRun) {
      if (own == own_.end()) {
        return MakeError(ErrorKind::kSystem,
                         "a decision names a tensor that this rank has not submitted");
      }
      Request& request = own->second.request;
      if (request.collective == Collective::kAllreduce) known_[id] = std::move(request);
      own_.erase(own);
      continue;
    }
    const uint64_t generation = decision.generations[k];
    uint64_t& rejected = rejected_[id];
    rejected = std::max(rejected, generation);
    const auto pending = pending_.find(id);
    if (pending != pending_.end() && pending->second.generation <= generation)
      pending_.erase(pending);
    if (own != own_.end() && own->second.generation == generation) own_.erase(own);
  }
  decision.end = ++decided_;
  decisions_.push_back(std::move(decision));
  return {};
}

Status TreeController::OnPlan(WireReader& reader, std::span<const std::byte> payload) {
  std::vector<BucketMembers> changes(reader.GetCount(2 * sizeof(uint32_t)));
  bool possible = true;
  for (BucketMembers& bucket : changes) {
    bucket.index = reader.Get<uint32_t>();
    const uint32_t count = reader.GetCount(sizeof(uint32_t));
    for (uint32_t k = 0; k < count; ++k) bucket.ids.push_back(reader.Get<uint32_t>());
    possible = possible && bucket.index < kNamedIds;
  }
  if (!reader.ok() || !possible) return Damaged(root_ ? -1 : Parent());
  HA_TRY(SendDown(payload));
  for (BucketMembers& bucket : changes) SetMembers(std::move(bucket));
  return {};
}

void TreeController::SetMembers(BucketMembers bucket) {
  if (bucket.index >= plan_members_.size()) plan_members_.resize(bucket.index + 1);
  std::vector<uint32_t>& members = plan_members_[bucket.index];
  for (const uint32_t id : members) {
    const auto found = bucket_of_.find(id);
    if (found != bucket_of_.end() && found->second == bucket.index) bucket_of_.erase(found);
  }
  members = std::move(bucket.ids);
  for (const uint32_t id : members) bucket_of_[id] = bucket.index;
}

Status TreeController::OnEnd(WireReader& reader, std::span<const std::byte> payload) {
  const SetEnd end = SetEnd::FromWire(reader.Get<int32_t>());
  if (!reader.ok()) return Damaged(root_ ? -1 : Parent());
  HA_TRY(SendDown(payload));
  end_ = end;
  return {};
}

}  // namespace horoacc
