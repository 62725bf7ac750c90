#include "negotiate/tree_plane.h"

#include <algorithm>

namespace horoacc {
namespace {

constexpr uint32_t kFanOut = 4;

enum class Message : uint8_t {
  kReady = 1,
  kSplit = 2,
  kDecision = 3,
  kPlan = 4,
  kGone = 5,
  kReject = 6
};

Error Damaged(int source) {
  return MakeError(ErrorKind::kSystem, "a control message is damaged", source);
}

void Put(WireWriter& writer, const Error& error) {
  writer.Put(static_cast<uint8_t>(error.kind));
  writer.Put(static_cast<int32_t>(error.culprit));
  writer.Put(std::string_view(error.message));
}

Error GetError(WireReader& reader) {
  const auto kind = static_cast<ErrorKind>(reader.Get<uint8_t>());
  const auto culprit = reader.Get<int32_t>();
  return MakeError(kind, reader.GetText(), culprit);
}

void Put(WireWriter& writer, TensorKey key) {
  writer.Put(key.id);
  writer.Put(key.generation);
}

TensorKey GetKey(WireReader& reader) {
  const auto id = reader.Get<uint32_t>();
  return {id, reader.Get<uint64_t>()};
}

}  // namespace

TreePlane::TreePlane(ControlMux& mux, uint32_t process_set, SetBoard& board,
                     const SetContext& context, const Bells& bells, const Settings& settings,
                     std::vector<int> global_ranks)
    : mux_(mux),
      process_set_(process_set),
      board_(board),
      context_(context),
      bells_(bells),
      global_ranks_(std::move(global_ranks)) {
  if (context_.me == 0) root_.emplace(board, context, settings);
  mux_.Register(process_set_, [this](int source, std::span<const std::byte> payload) {
    return OnMessage(source, payload);
  });
}

TreePlane::~TreePlane() { mux_.Unregister(process_set_); }

int TreePlane::Parent() const { return global_ranks_[(context_.me - 1) / kFanOut]; }

std::vector<int> TreePlane::Children() const {
  std::vector<int> children;
  for (uint32_t child = context_.me * kFanOut + 1; child <= context_.me * kFanOut + kFanOut;
       ++child) {
    if (child < context_.ranks) children.push_back(global_ranks_[child]);
  }
  return children;
}

Status TreePlane::OnMessage(int source, std::span<const std::byte> payload) {
  std::lock_guard lock(mutex_);
  WireReader reader(payload);
  switch (static_cast<Message>(reader.Get<uint8_t>())) {
    case Message::kReady:
      return OnReady(reader);
    case Message::kSplit:
      return OnSplit(reader);
    case Message::kReject:
      return OnReject(reader);
    case Message::kDecision:
      return OnDecision(reader, payload);
    case Message::kPlan:
      return OnPlan(reader, payload);
    case Message::kGone:
      return OnGone(reader, payload);
    default:
      return MakeError(ErrorKind::kSystem, "unknown control message", source);
  }
}

// ---- up

Status TreePlane::Announce(const Announcement& announcement) {
  std::lock_guard lock(mutex_);
  if (gone_ != kNobody) return {};  // nothing is decided any more; the driver fails the call
  const TensorKey key{announcement.id, announcement.generation};
  // The generation on the board advances here too, by the last rank: rows are kept by its parity.
  IdEntry& entry = board_.id(key.id);
  uint64_t seen = entry.arrivals.load(std::memory_order_acquire);
  for (;;) {
    if (seen >> 48 != announcement.incarnation || (seen >> 16 & 0xffffffff) + 1 != key.generation) {
      return MakeError(ErrorKind::kAborted, "the id or its generation has moved on", kLookUpAgain);
    }
    const bool last = (seen & 0xffff) + 1 == context_.ranks;
    // Until the news has climbed, and the root has decided, the id does not rest.
    if (last) entry.last_decision.store(kUndecided, std::memory_order_relaxed);
    const uint64_t next = last ? (seen & ~0xffffull) + 0x10000 : seen + 1;
    if (entry.arrivals.compare_exchange_weak(seen, next, std::memory_order_acq_rel)) break;
  }
  const Request& request = *announcement.request;
  own_[key.id] = {key.generation, request};
  const int me = global_ranks_[context_.me];
  Error complaint = MakeError(ErrorKind::kOk, "");
  if (!request.local_error.empty()) {
    complaint = MakeError(ErrorKind::kInvalid,
                          "tensor '" + DisplayName(board_, key, request.collective) + "' on rank " +
                              std::to_string(me) + ": " + request.local_error,
                          me);
  }
  return Arrive(key, me, request, std::move(complaint));
}

// One more branch is ready. When all are, the news goes up, or at the root becomes a decision.
Status TreePlane::Arrive(TensorKey key, int rank, const Request& request, Error disagreement) {
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
  if (pending.branches++ == 0) {
    pending.request = request;
    pending.request_rank = rank;
  } else if (pending.disagreement.kind == ErrorKind::kOk &&
             pending.request.Signature() != request.Signature()) {
    const bool ordered = pending.request_rank < rank;
    const std::string name = DisplayName(board_, key, request.collective);
    pending.disagreement = MakeError(
        ErrorKind::kMismatch,
        ordered ? DescribeMismatch(name, pending.request_rank, pending.request, rank, request)
                : DescribeMismatch(name, rank, request, pending.request_rank, pending.request),
        std::max(rank, pending.request_rank));
  }
  if (pending.branches < Children().size() + 1) return {};
  const Pending complete = std::move(pending);
  pending_.erase(key.id);
  const auto own = own_.find(key.id);
  if (own == own_.end() || own->second.generation != key.generation) {
    return MakeError(ErrorKind::kSystem, "a control message tells of a call that was not made",
                     rank);
  }
  if (!root_) return Forward(key, complete);
  return Tell(root_->Ready(key, complete.disagreement));
}

Status TreePlane::Forward(TensorKey key, const Pending& pending) {
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(Message::kReady));
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

Status TreePlane::OnReady(WireReader& reader) {
  const bool warm = reader.Get<uint8_t>() != 0;
  const auto rank = reader.Get<int32_t>();
  const TensorKey key = GetKey(reader);
  if (!reader.ok() || key.id >= kIds) return Damaged(rank);
  if (warm) {
    const auto known = known_.find(key.id);
    if (known == known_.end()) {
      return MakeError(ErrorKind::kSystem, "a control message names an unknown tensor", rank);
    }
    const Request request = known->second;
    return Arrive(key, rank, request, MakeError(ErrorKind::kOk, ""));
  }
  const Request request = reader.GetRequest();
  Error disagreement = GetError(reader);
  if (!reader.ok()) return Damaged(rank);
  return Arrive(key, rank, request, std::move(disagreement));
}

// Goes to the root at once, which closes the generation and decides.
Status TreePlane::Reject(TensorKey tensor, const Error& error) {
  std::lock_guard lock(mutex_);
  if (root_) return Tell(root_->Reject(tensor, error));
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(Message::kReject));
  Put(writer, tensor);
  Put(writer, error);
  return mux_.Send(process_set_, global_ranks_[0], writer.bytes());
}

Status TreePlane::OnReject(WireReader& reader) {
  const TensorKey key = GetKey(reader);
  Error error = GetError(reader);
  if (!reader.ok() || key.id >= kIds) return Damaged(-1);
  return root_ ? Tell(root_->Reject(key, std::move(error))) : Status();
}

// What this rank has submitted and what is not decided yet counts, not what is in flight: a bucket
// may run in two parts, and a decision be taken but not carried out.
Status TreePlane::Unblock(std::span<const uint32_t>) {
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
    writer.Put(static_cast<uint8_t>(Message::kSplit));
    writer.Put(bucket);
    Put(writer, partial.witness);
    HA_TRY(mux_.Send(process_set_, global_ranks_[0], writer.bytes()));
  }
  return {};
}

Status TreePlane::OnSplit(WireReader& reader) {
  const auto bucket = reader.Get<uint32_t>();
  const TensorKey witness = GetKey(reader);
  if (!reader.ok()) return Damaged(-1);
  return root_ ? Tell(root_->Split(bucket, witness)) : Status();
}

// ---- the root

Status TreePlane::Tell(TreeRoot::Verdicts verdicts) {
  for (;;) {
    for (Decision& decision : verdicts) HA_TRY(Publish(std::move(decision)));
    HA_TRY(PublishPlan());
    if (!root_->starving()) break;
    if (board_.Starve()) {  // whoever lags has to catch up
      for (uint32_t r = 0; r < context_.ranks; ++r)
        bells_.Ring(static_cast<int>(board_.local(r)), Urgency::kWork);
    }
    verdicts = root_->Retry();
    if (verdicts.empty()) return {};
  }
  board_.header().starved.store(0, std::memory_order_relaxed);
  return {};
}

Status TreePlane::Publish(Decision decision) {
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(Message::kDecision));
  writer.Put(static_cast<uint8_t>(decision.kind));
  writer.Put(static_cast<uint8_t>((decision.done ? 1 : 0) | (decision.shared ? 2 : 0)));
  writer.Put(decision.slot);
  Put(writer, MakeError(decision.error, decision.text, decision.culprit));
  writer.Put(static_cast<uint32_t>(decision.ids.size()));
  for (const uint32_t id : decision.ids) writer.Put(id);
  for (const uint64_t generation : decision.generations) writer.Put(generation);
  HA_TRY(SendDown(writer.bytes()));
  bool work = !decision.done;
  for (const uint32_t id : decision.ids) {
    const auto own = own_.find(id);
    work = work ||
           (own != own_.end() && board_.row(context_.me, id, own->second.generation).notify != 0);
    board_.id(id).last_decision.store(decided_ + 1, std::memory_order_relaxed);
  }
  HA_TRY(Take(std::move(decision)));
  bells_.Ring(static_cast<int>(board_.local(context_.me)), work ? Urgency::kWork : Urgency::kQuiet);
  return {};
}

Status TreePlane::PublishPlan() {
  std::vector<BucketMembers> changes = root_->PlanChanges();
  if (changes.empty()) return {};
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(Message::kPlan));
  writer.Put(static_cast<uint32_t>(changes.size()));
  for (BucketMembers& bucket : changes) {
    writer.Put(bucket.index);
    writer.Put(static_cast<uint32_t>(bucket.ids.size()));
    for (const uint32_t id : bucket.ids) writer.Put(id);
    SetMembers(std::move(bucket));
  }
  return SendDown(writer.bytes());
}

Status TreePlane::PublishGone() {
  const int gone = board_.header().gone.load(std::memory_order_acquire) - 1;
  if (gone == kNobody || gone_ != kNobody) return {};
  gone_ = gone;
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(Message::kGone));
  writer.Put(static_cast<int32_t>(gone));
  return SendDown(writer.bytes());
}

Status TreePlane::Pump() {
  if (!root_) return {};
  std::lock_guard lock(mutex_);
  if (root_->starving()) HA_TRY(Tell(root_->Retry()));
  return PublishGone();
}

// ---- down

Status TreePlane::SendDown(std::span<const std::byte> payload) {
  for (const int child : Children()) HA_TRY(mux_.Send(process_set_, child, payload));
  return {};
}

Status TreePlane::OnDecision(WireReader& reader, std::span<const std::byte> payload) {
  Decision decision;
  decision.kind = static_cast<Decision::Kind>(reader.Get<uint8_t>());
  const auto flags = reader.Get<uint8_t>();
  decision.done = flags & 1;
  decision.shared = flags & 2;
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
  const bool possible = std::ranges::all_of(decision.ids, [](uint32_t id) { return id < kIds; });
  if (!reader.ok() || !possible) return Damaged(root_ ? -1 : Parent());
  HA_TRY(SendDown(payload));
  return Take(std::move(decision));
}

Status TreePlane::Take(Decision decision) {
  for (size_t k = 0; k < decision.ids.size(); ++k) {
    const uint32_t id = decision.ids[k];
    const auto own = own_.find(id);
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

Status TreePlane::OnPlan(WireReader& reader, std::span<const std::byte> payload) {
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

void TreePlane::SetMembers(BucketMembers bucket) {
  if (bucket.index >= plan_members_.size()) plan_members_.resize(bucket.index + 1);
  std::vector<uint32_t>& members = plan_members_[bucket.index];
  for (const uint32_t id : members) {
    const auto found = bucket_of_.find(id);
    if (found != bucket_of_.end() && found->second == bucket.index) bucket_of_.erase(found);
  }
  members = std::move(bucket.ids);
  for (const uint32_t id : members) bucket_of_[id] = bucket.index;
}

Status TreePlane::OnGone(WireReader& reader, std::span<const std::byte> payload) {
  const auto gone = reader.Get<int32_t>();
  if (!reader.ok()) return Damaged(root_ ? -1 : Parent());
  HA_TRY(SendDown(payload));
  gone_ = gone;
  return {};
}

int TreePlane::Gone() {
  std::lock_guard lock(mutex_);
  return gone_;
}

Result<std::optional<Decision>> TreePlane::Next() {
  std::lock_guard lock(mutex_);
  if (decisions_.empty()) return std::optional<Decision>();
  std::optional<Decision> next = std::move(decisions_.front());
  decisions_.pop_front();
  return next;
}

Status TreePlane::Finish(const Decision& decision) {
  const bool ran = decision.kind == Decision::Kind::kRun && !decision.done;
  const auto slots = ran ? std::optional<uint64_t>(decision.slot + 1) : std::nullopt;
  if (!board_.FinishUpTo(decision.end, slots)) return {};
  if (root_) return Pump();
  bells_.Ring(static_cast<int>(board_.local(0)), Urgency::kWork);
  return {};
}

}  // namespace horoacc
