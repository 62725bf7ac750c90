#include "negotiate/tree/tree_controller.h"

#include <algorithm>
#include <utility>

#include "negotiate/multi_host/multi_host_tree.h"

namespace horoacc {
namespace {

WireWriter Begin(TreeMessage kind) {
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(kind));
  return writer;
}

TensorKey GetKey(WireReader& reader) {
  const auto id = reader.Get<uint32_t>();
  return {id, reader.Get<uint64_t>()};
}

}  // namespace

TreeController::TreeController(ControlMux& mux, uint32_t process_set, SetSegment& control,
                               const SetContext& context, const Doorbells& doorbells,
                               const Settings& settings, std::vector<int> global_ranks)
    : mux_(mux),
      process_set_(process_set),
      control_(control),
      context_(context),
      doorbells_(doorbells),
      global_ranks_(std::move(global_ranks)) {
  if (context_.me == 0) root_.emplace(control, context, settings, global_ranks_);
  mux_.Register(process_set_, [this](int source, std::span<const std::byte> payload) {
    return OnMessage(source, payload);
  });
}

TreeController::~TreeController() { mux_.Unregister(process_set_); }

int TreeController::Parent() const { return global_ranks_[(context_.me - 1) / kFanOut]; }

std::vector<int> TreeController::Children() const {
  std::vector<int> children;
  for (uint32_t child = context_.me * kFanOut + 1; child <= context_.me * kFanOut + kFanOut;
       ++child) {
    if (child < context_.ranks) children.push_back(global_ranks_[child]);
  }
  return children;
}

uint32_t TreeController::BranchOf(int global_rank) const {
  const std::vector<int> children = Children();
  const auto child = std::ranges::find(children, global_rank);
  return child == children.end() ? 0 : 2u << (child - children.begin());
}

Status TreeController::OnMessage(int source, std::span<const std::byte> payload) {
  std::lock_guard lock(mutex_);
  WireReader reader(payload);
  switch (static_cast<TreeMessage>(reader.Get<uint8_t>())) {
    case TreeMessage::kReady:
      return OnReady(source, reader);
    case TreeMessage::kJoined:
      return OnJoined(source, reader);
    case TreeMessage::kSplit:
      return OnSplit(reader);
    case TreeMessage::kReject:
      return OnReject(reader);
    case TreeMessage::kDecision:
      return OnDecision(reader, payload);
    case TreeMessage::kPlan:
      return OnPlan(reader, payload);
    case TreeMessage::kEnd:
      return OnEnd(reader, payload);
    default:
      return MakeError(ErrorKind::kSystem, "unknown control message", source);
  }
}

SetEnd TreeController::Ended() {
  std::lock_guard lock(mutex_);
  return end_;
}

Result<std::optional<Decision>> TreeController::Next() {
  std::lock_guard lock(mutex_);
  if (decisions_.empty()) return std::optional<Decision>();
  std::optional<Decision> next = std::move(decisions_.front());
  decisions_.pop_front();
  return next;
}

Status TreeController::Finish(const Decision& decision) {
  const bool ran = decision.kind == Decision::Kind::kRun && !decision.done();
  const auto slots = ran ? std::optional<uint64_t>(decision.slot + 1) : std::nullopt;
  if (!control_.FinishUpTo(decision.end, slots)) return {};
  if (root_) return Pump();
  doorbells_.Ring(static_cast<int>(control_.local(0)), Urgency::kWork);
  return {};
}

// The way up: announcements, rejections and splits, from a rank to the root.

Result<Announced> TreeController::Announce(const Announcement& announcement) {
  std::lock_guard lock(mutex_);
  if (end_) return Announced::kTaken;  // nothing is decided any more; the driver fails the call
  const TensorKey key{announcement.id, announcement.generation};
  // The generation on the control segment advances here too, by the last rank: rows are kept by its
  // parity.
  IdEntry& entry = control_.id(key.id);
  Arrivals seen = entry.arrivals.load(std::memory_order_acquire);
  for (;;) {
    if (!seen.Admits(announcement.id_version, key.generation)) return Announced::kLookUpAgain;
    const Arrivals next = seen.Arrive(context_.ranks);
    // Until the root has decided, the id does not rest.
    if (next.arrived() == 0) entry.last_decision.store(kUndecided, std::memory_order_relaxed);
    if (entry.arrivals.compare_exchange_weak(seen, next, std::memory_order_acq_rel)) break;
  }
  own_[key.id] = key.generation;
  HA_TRY(Arrive(key, kOwnBranch));
  return Announced::kTaken;
}

// One more branch is ready.
Status TreeController::Arrive(TensorKey key, uint32_t branch) {
  // A message that was on its way up while the call was rejected has no receiver any more.
  if (const auto rejected = rejected_.find(key.id);
      rejected != rejected_.end() && key.generation <= rejected->second) {
    return {};
  }
  Pending& pending = pending_[key.id];
  if (key.generation < pending.generation) return {};
  // The next generation has begun, so the one before was closed; the rejection is on its way.
  if (key.generation > pending.generation) pending = Pending();
  pending.generation = key.generation;
  pending.arrived |= branch;
  return Climb(key.id);
}

// When all branches are ready or have joined, the news goes up, or at the root becomes a decision.
Status TreeController::Climb(uint32_t id) {
  const auto pending = pending_.find(id);
  if ((pending->second.arrived | joined_) != AllBranches()) return {};
  const Pending complete = pending->second;
  pending_.erase(pending);
  const TensorKey key{id, complete.generation};
  const auto own = own_.find(id);
  const bool submitted = own != own_.end() && own->second == key.generation;
  if (submitted != ((complete.arrived & kOwnBranch) != 0)) {
    return MakeError(ErrorKind::kSystem, "a control message tells of a call that was not made");
  }
  if (root_) return Tell(root_->Ready(key));
  WireWriter writer = Begin(TreeMessage::kReady);
  Put(writer, key);
  return mux_.Send(process_set_, Parent(), writer.bytes());
}

Status TreeController::Join(uint64_t unnamed) {
  std::lock_guard lock(mutex_);
  if (end_) return {};
  control_.cursor(context_.me)
      .joined.fetch_add(1, std::memory_order_release);  // for the stall watch
  return BranchJoined(kOwnBranch, global_ranks_[context_.me], unnamed);
}

// The calls that a branch submitted before it joined have arrived before.
Status TreeController::BranchJoined(uint32_t branch, int last, uint64_t unnamed) {
  joined_ |= branch;
  unnamed_ = std::max(unnamed_, unnamed);
  std::vector<uint32_t> waiting;
  for (const auto& [id, pending] : pending_) waiting.push_back(id);
  std::ranges::sort(waiting);
  for (const uint32_t id : waiting) HA_TRY(Climb(id));
  if (joined_ != AllBranches()) return {};
  if (root_) return Tell(root_->Joined(last, unnamed_));
  WireWriter writer = Begin(TreeMessage::kJoined);
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

Status TreeController::OnReady(int source, WireReader& reader) {
  const TensorKey key = GetKey(reader);
  const uint32_t branch = BranchOf(source);
  if (!reader.ok() || key.id >= kIds || branch == 0) return Damaged(source);
  return Arrive(key, branch);
}

// Goes to the root at once, which closes the generation and decides.
Status TreeController::Reject(TensorKey tensor, const Error& error) {
  std::lock_guard lock(mutex_);
  if (root_) return Tell(root_->Reject(tensor, error));
  WireWriter writer = Begin(TreeMessage::kReject);
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

// Counts the undecided calls of this rank, not `in_flight`: a bucket may run in two parts, and a
// decision may be taken but not carried out.
Status TreeController::Unblock(std::span<const uint32_t>) {
  std::lock_guard lock(mutex_);
  for (const auto& [bucket, id] : buckets_.Partial(own_)) {
    const auto own = own_.find(id);
    if (own == own_.end()) continue;  // decided by a split before
    const TensorKey witness{id, own->second};
    if (root_) {
      HA_TRY(Tell(root_->Split(bucket, witness)));
      continue;
    }
    WireWriter writer = Begin(TreeMessage::kSplit);
    writer.Put(bucket);
    Put(writer, witness);
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

// The way down: the root's decisions, and how every rank takes them.

Status TreeController::Tell(TreeRoot::Verdicts verdicts) {
  for (;;) {
    for (Decision& decision : verdicts) HA_TRY(Publish(std::move(decision)));
    HA_TRY(PublishPlan());
    if (!root_->starving()) break;
    if (control_.Starve()) {  // the ranks that lag have to catch up
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
  WireWriter writer = Begin(TreeMessage::kDecision);
  Put(writer, decision);
  writer.Put(decision.slot);
  Put(writer, decision.ids);
  Put(writer, decision.generations);
  HA_TRY(SendDown(writer.bytes()));
  bool work = decision.kind != Decision::Kind::kRun || !decision.done();
  for (const uint32_t id : decision.ids) {
    const auto own = own_.find(id);
    work = work || (own != own_.end() && control_.row(context_.me, id, own->second).notify != 0);
    control_.id(id).last_decision.store(decided_ + 1, std::memory_order_relaxed);
  }
  HA_TRY(Take(std::move(decision)));
  doorbells_.Ring(static_cast<int>(control_.local(context_.me)),
                  work ? Urgency::kWork : Urgency::kQuiet);
  return {};
}

Status TreeController::PublishPlan() {
  const std::vector<BucketMembers<uint32_t>> changes = root_->TakePlanChanges();
  if (changes.empty()) return {};
  WireWriter writer = Begin(TreeMessage::kPlan);
  Put(writer, changes);
  for (const BucketMembers<uint32_t>& bucket : changes) buckets_.Set(bucket);
  return SendDown(writer.bytes());
}

Status TreeController::PublishEnd() {
  const SetEnd end = control_.header().end.load(std::memory_order_acquire);
  if (!end || end_) return {};
  end_ = end;
  WireWriter writer = Begin(TreeMessage::kEnd);
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
  Decision decision = GetDecision(reader);
  decision.slot = reader.Get<uint64_t>();
  decision.ids = GetList<uint32_t>(reader);
  decision.generations = GetList<uint64_t>(reader);
  const bool failed = decision.kind == Decision::Kind::kError;
  const bool possible = decision.generations.size() == (failed ? decision.ids.size() : 0) &&
                        (decision.kind != Decision::Kind::kJoin || decision.ids.empty()) &&
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
    if (decision.kind == Decision::Kind::kRun) {
      if (own != own_.end()) {
        own_.erase(own);
      } else if (!decision.partial) {
        return MakeError(ErrorKind::kSystem,
                         "a decision names a tensor that this rank has not submitted");
      }
      continue;
    }
    const uint64_t generation = decision.generations[k];
    uint64_t& rejected = rejected_[id];
    rejected = std::max(rejected, generation);
    const auto pending = pending_.find(id);
    if (pending != pending_.end() && pending->second.generation <= generation)
      pending_.erase(pending);
    if (own != own_.end() && own->second == generation) own_.erase(own);
  }
  decision.end = ++decided_;
  decisions_.push_back(std::move(decision));
  return {};
}

Status TreeController::OnPlan(WireReader& reader, std::span<const std::byte> payload) {
  const auto changes = GetBuckets<uint32_t>(reader, sizeof(uint32_t),
                                            [](WireReader& r) { return r.Get<uint32_t>(); });
  if (!reader.ok()) return Damaged(root_ ? -1 : Parent());
  HA_TRY(SendDown(payload));
  for (const BucketMembers<uint32_t>& bucket : changes) buckets_.Set(bucket);
  return {};
}

Status TreeController::OnEnd(WireReader& reader, std::span<const std::byte> payload) {
  const SetEnd end = SetEnd::FromWire(reader.Get<int32_t>());
  if (!reader.ok()) return Damaged(root_ ? -1 : Parent());
  HA_TRY(SendDown(payload));
  end_ = end;
  return {};
}

}  // namespace horoacc
