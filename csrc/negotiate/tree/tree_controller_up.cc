// The way up: announcements, rejections and splits, from a rank to the root.
#include <algorithm>
#include <utility>

#include "negotiate/tree/tree_controller.h"
#include "negotiate/tree/tree_messages.h"

namespace horoacc {

Result<Announced> TreeController::Announce(const Announcement& announcement) {
  std::lock_guard lock(mutex_);
  if (end_) return Announced::kTaken;  // nothing is decided any more; the driver fails the call
  const TensorKey key{announcement.id, announcement.generation};
  // The generation on the control segment advances here too, by the last rank: rows are kept by its
  // parity.
  IdEntry& entry = control_.id(key.id);
  Arrivals seen = entry.arrivals.load(std::memory_order_acquire);
  for (;;) {
    if (seen.incarnation() != announcement.incarnation || seen.open() != key.generation)
      return Announced::kLookUpAgain;
    const bool last = seen.arrived() + 1 == context_.ranks;
    // Until the news has climbed, and the root has decided, the id does not rest.
    if (last) entry.last_decision.store(kUndecided, std::memory_order_relaxed);
    const Arrivals next = last ? seen.Closed() : seen.OneMore();
    if (entry.arrivals.compare_exchange_weak(seen, next, std::memory_order_acq_rel)) break;
  }
  const Request& request = *announcement.request;
  own_[key.id] = {key.generation, request};
  const int me = global_ranks_[context_.me];
  Error complaint = MakeError(ErrorKind::kOk, "");
  if (!request.local_error.empty()) {
    complaint = MakeError(ErrorKind::kInvalid,
                          "tensor '" + DisplayName(control_, key, request.collective) +
                              "' on rank " + std::to_string(me) + ": " + request.local_error,
                          me);
  }
  HA_TRY(Arrive(key, kOwnBranch, me, request, std::move(complaint)));
  return Announced::kTaken;
}

// One more branch is ready.
Status TreeController::Arrive(TensorKey key, uint32_t branch, int rank, const Request& request,
                              Error disagreement) {
  // News that was on its way up while the call was rejected is for nobody any more.
  if (const auto rejected = rejected_.find(key.id);
      rejected != rejected_.end() && key.generation <= rejected->second) {
    return {};
  }
  Pending& pending = pending_[key.id];
  if (key.generation < pending.generation) return {};
  // The next generation has begun, so the one before was closed; the rejection is on its way.
  if (key.generation > pending.generation) pending = Pending();
  pending.generation = key.generation;
  if (pending.disagreement.kind == ErrorKind::kOk) pending.disagreement = std::move(disagreement);
  if (std::exchange(pending.arrived, pending.arrived | branch) == 0) {
    pending.request = request;
    pending.request_rank = rank;
  } else if (pending.disagreement.kind == ErrorKind::kOk &&
             pending.request.Signature() != request.Signature()) {
    const bool ordered = pending.request_rank < rank;
    const std::string name = DisplayName(control_, key, request.collective);
    pending.disagreement = MakeError(
        ErrorKind::kMismatch,
        ordered ? DescribeMismatch(name, pending.request_rank, pending.request, rank, request)
                : DescribeMismatch(name, rank, request, pending.request_rank, pending.request),
        std::max(rank, pending.request_rank));
  }
  return Climb(key.id);
}

// When all branches are ready or have joined, the news goes up, or at the root becomes a decision.
Status TreeController::Climb(uint32_t id) {
  const auto pending = pending_.find(id);
  if ((pending->second.arrived | joined_) != AllBranches()) return {};
  const Pending complete = std::move(pending->second);
  pending_.erase(pending);
  const TensorKey key{id, complete.generation};
  const auto own = own_.find(id);
  const bool submitted = own != own_.end() && own->second.generation == key.generation;
  if (submitted != ((complete.arrived & kOwnBranch) != 0)) {
    return MakeError(ErrorKind::kSystem, "a control message tells of a call that was not made",
                     complete.request_rank);
  }
  if (!root_) return Forward(key, complete);
  return Tell(root_->Ready(key, complete.disagreement));
}

Status TreeController::Join(uint64_t unnamed) {
  std::lock_guard lock(mutex_);
  if (end_) return {};
  control_.cursor(context_.me)
      .joined.fetch_add(1, std::memory_order_release);  // for the stall watch
  return BranchJoined(kOwnBranch, global_ranks_[context_.me], unnamed);
}

// What a branch had submitted before has come before.
Status TreeController::BranchJoined(uint32_t branch, int last, uint64_t unnamed) {
  joined_ |= branch;
  unnamed_ = std::max(unnamed_, unnamed);
  std::vector<uint32_t> waiting;
  for (const auto& [id, pending] : pending_) waiting.push_back(id);
  std::ranges::sort(waiting);
  for (const uint32_t id : waiting) HA_TRY(Climb(id));
  if (joined_ != AllBranches()) return {};
  if (root_) return Tell(root_->Joined(last, unnamed_));
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(TreeMessage::kJoined));
  writer.Put(static_cast<int32_t>(last));
  writer.Put(unnamed_);
  return mux_.Send(process_set_, Parent(), writer.bytes());
}

Status TreeController::OnJoined(int source, WireReader& reader) {
  const auto last = reader.Get<int32_t>();
  const auto unnamed = reader.Get<uint64_t>();
  const uint32_t branch = BranchOf(source);
  if (!reader.ok() || branch == 0) return Damaged(source);
  return BranchJoined(branch, last, unnamed);
}

Status TreeController::Forward(TensorKey key, const Pending& pending) {
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(TreeMessage::kReady));
  // The parent has taken every decision that this rank has taken: it knows what this one knows.
  const auto known = known_.find(key.id);
  const bool warm = known != known_.end() && pending.disagreement.kind == ErrorKind::kOk &&
                    known->second.Signature() == pending.request.Signature();
  writer.Put(static_cast<uint8_t>(warm));
  writer.Put(static_cast<int32_t>(pending.request_rank));
  Put(writer, key);
  if (!warm) {
    writer.Put(pending.request);
    Put(writer, pending.disagreement);
  }
  return mux_.Send(process_set_, Parent(), writer.bytes());
}

Status TreeController::OnReady(int source, WireReader& reader) {
  const bool warm = reader.Get<uint8_t>() != 0;
  const auto rank = reader.Get<int32_t>();
  const TensorKey key = GetKey(reader);
  const uint32_t branch = BranchOf(source);
  if (!reader.ok() || key.id >= kIds || branch == 0) return Damaged(source);
  if (warm) {
    const auto known = known_.find(key.id);
    if (known == known_.end()) {
      return MakeError(ErrorKind::kSystem, "a control message names an unknown tensor", rank);
    }
    const Request request = known->second;
    return Arrive(key, branch, rank, request, MakeError(ErrorKind::kOk, ""));
  }
  const Request request = reader.GetRequest();
  Error disagreement = GetError(reader);
  if (!reader.ok()) return Damaged(rank);
  return Arrive(key, branch, rank, request, std::move(disagreement));
}

// Goes to the root at once, which closes the generation and decides.
Status TreeController::Reject(TensorKey tensor, const Error& error) {
  std::lock_guard lock(mutex_);
  if (root_) return Tell(root_->Reject(tensor, error));
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(TreeMessage::kReject));
  Put(writer, tensor);
  Put(writer, error);
  return mux_.Send(process_set_, global_ranks_[0], writer.bytes());
}

Status TreeController::OnReject(WireReader& reader) {
  const TensorKey key = GetKey(reader);
  Error error = GetError(reader);
  if (!reader.ok() || key.id >= kIds) return Damaged(-1);
  return root_ ? Tell(root_->Reject(key, std::move(error))) : Status();
}

// What this rank has submitted and what is not decided yet counts, not what is in flight: a bucket
// may run in two parts, and a decision be taken but not carried out.
Status TreeController::Unblock(std::span<const uint32_t>) {
  std::lock_guard lock(mutex_);
  struct Partial {
    size_t members = 0;
    TensorKey witness;
  };
  std::unordered_map<uint32_t, Partial> touched;
  for (const auto& [id, own] : own_) {
    const auto bucket = bucket_of_.find(id);
    if (bucket == bucket_of_.end()) continue;
    Partial& partial = touched[bucket->second];
    ++partial.members;
    partial.witness = {id, own.generation};
  }
  for (const auto& [bucket, partial] : touched) {
    if (partial.members == plan_members_[bucket].size()) continue;
    if (root_) {
      HA_TRY(Tell(root_->Split(bucket, partial.witness)));
      continue;
    }
    WireWriter writer;
    writer.Put(static_cast<uint8_t>(TreeMessage::kSplit));
    writer.Put(bucket);
    Put(writer, partial.witness);
    HA_TRY(mux_.Send(process_set_, global_ranks_[0], writer.bytes()));
  }
  return {};
}

Status TreeController::OnSplit(WireReader& reader) {
  const auto bucket = reader.Get<uint32_t>();
  const TensorKey witness = GetKey(reader);
  if (!reader.ok()) return Damaged(-1);
  return root_ ? Tell(root_->Split(bucket, witness)) : Status();
}

}  // namespace horoacc
