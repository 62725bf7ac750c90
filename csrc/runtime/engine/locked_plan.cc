#include "runtime/engine/locked_plan.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <optional>
#include <string_view>

namespace horoacc {
namespace {

constexpr uint64_t kMostRounds = 1000;  // unchanged ones before a proposal
constexpr size_t kNamed = 4;            // of the tensors that a bucket lacks

Status Closed() { return MakeError(ErrorKind::kAborted, "the engine has been shut down"); }

// The other ranks of such a call have an error as well, and no memory was touched.
bool IsRefusal(const Status& outcome) {
  if (outcome.ok()) return false;
  const ErrorKind kind = outcome.error().kind;
  return kind == ErrorKind::kInvalid || kind == ErrorKind::kMismatch ||
         kind == ErrorKind::kUnsupported;
}

// FNV-1a: the same on every rank.
class Hash {
 public:
  void Add(std::string_view bytes) {
    for (const char byte : bytes)
      state_ = (state_ ^ static_cast<unsigned char>(byte)) * 0x100000001b3ull;
  }
  void Add(uint64_t word) {
    Add(std::string_view(reinterpret_cast<const char*>(&word), sizeof word));
  }
  [[nodiscard]] uint64_t Finish() const { return state_ == 0 ? 1 : state_; }

 private:
  uint64_t state_ = 0xcbf29ce484222325ull;
};

}  // namespace

LockedPlan::LockedPlan(Surroundings around, Submission call, const std::vector<std::string>& names)
    : around_(std::move(around)), call_(std::move(call)), needed_(around_.settings.plan_rounds) {
  members_.resize(names.size());
  for (size_t index = 0; index < names.size(); ++index) members_[index].name = names[index];
}

LockedPlan::~LockedPlan() {
  if (around_.ended) around_.ended(this);
  const std::lock_guard lock(mutex_);
  if (!closed_) LockAhead();
  Leave(&Counters::plan_unlocks_end, "its tensors are not reduced together any more");
  for (const Member& member : members_) {
    if (member.state == State::kCalled) around_.calls.Release(member.handle);
  }
  for (const Bucket& bucket : buckets_) {
    if (bucket.handle != 0) around_.calls.Release(bucket.handle);
  }
}

// By whose outcome the others may find that all ranks agree, when this rank looks at none any more;
// or null.
std::shared_ptr<CollectiveEntry> LockedPlan::ProposalInFlight() const {
  if (proposal_ == 0) return nullptr;
  const Member& first = members_[proposed_[0].members[0]];
  if (first.state != State::kCalled) return nullptr;
  std::shared_ptr<CollectiveEntry> call = CallOf(first.handle);
  if (!call || call->proposal.plan == 0) return nullptr;
  const bool differs = call->complete.load(std::memory_order_acquire) && !call->agreed;
  return differs ? nullptr : call;
}

// This rank will not end the round, after which the others may be locked: it is, now.
void LockedPlan::LockAhead() {
  if (agreed_ == 0) {
    if (const auto proposal = ProposalInFlight()) {
      agreed_ = proposal->proposal.number;
      doubts_ = {proposal};
    }
  }
  if (agreed_ != 0) Lock(agreed_);
}

bool LockedPlan::IsApart(const TensorMeta& tensor, const Submission::Buffers& buffers) const {
  return tensor.bytes() > around_.tuned.last_arriver_bytes() &&
         !(around_.arena.Contains(buffers.input) && around_.arena.Contains(buffers.output));
}

bool LockedPlan::InFlight(size_t index) const {
  const std::lock_guard lock(mutex_);
  return members_[index].state != State::kIdle;
}

Status LockedPlan::Submit(size_t index, const TensorMeta& tensor, Submission::Buffers buffers) {
  const std::lock_guard lock(mutex_);
  if (closed_) return Closed();
  Member& member = members_[index];
  if (member.state != State::kIdle) {
    return MakeError(ErrorKind::kInvalid,
                     "tensor '" + member.name + "' was submitted again before it was waited for");
  }
  order_.push_back(static_cast<uint32_t>(index));
  member.buffers = buffers;
  const bool apart = IsApart(tensor, buffers);
  const bool same = member.tensor == tensor && member.apart == apart;
  if (!same) {
    changed_ = true;
    member.tensor = tensor;
    member.apart = apart;
  }
  if (!locked_ || member.bucket == buckets_.size()) {
    const bool first = proposal_ != 0 && index == proposed_[0].members[0];
    Call(member, first ? proposal_ : 0);
    return Taken(member);
  }
  if (!same) {
    Leave(&Counters::plan_unlocks_changed,
          "the type, the shape or the place of '" + member.name + "' changed");
    Call(member);
    return Taken(member);
  }
  member.state = State::kStored;
  Bucket& bucket = buckets_[member.bucket];
  return --bucket.missing == 0 ? SubmitBucket(bucket) : Status();
}

// The outcome of a submission. If the other ranks have not heard of it, then it was none.
Status LockedPlan::Taken(Member& member) {
  if (member.state != State::kRefused) return {};
  if (!IsRefusal(member.refusal)) member.state = State::kIdle;
  return member.refusal;
}

// Submits one tensor by itself.
void LockedPlan::Call(Member& member, uint64_t proposal) {
  Submission submission = call_;
  submission.name = member.name;
  submission.request.tensors = {member.tensor};
  submission.buffers = {member.buffers};
  submission.proposal = proposal;
  Result<uint64_t> handle = around_.calls.Submit(std::move(submission));
  if (handle.ok()) {
    member.state = State::kCalled;
    member.handle = handle.value();
  } else {
    member.state = State::kRefused;
    member.refusal = handle.error();
  }
}

Status LockedPlan::SubmitBucket(Bucket& bucket) {
  Submission submission = call_;
  submission.name = bucket.name;
  submission.recurs = Recurs::kInPlan;
  submission.request.way = way_;
  submission.request.tensors.reserve(bucket.members.size());
  submission.buffers.reserve(bucket.members.size());
  for (const uint32_t index : bucket.members) {
    submission.request.tensors.push_back(members_[index].tensor);
    submission.buffers.push_back(members_[index].buffers);
  }
  const Result<uint64_t> handle = around_.calls.Submit(std::move(submission));
  if (handle.ok()) {
    bucket.submitted = true;
    bucket.handle = handle.value();
    --open_;
    return {};
  }
  if (!IsRefusal(handle.error())) {  // the engine takes no calls any more
    locked_ = false;
    for (Member& member : members_) {
      if (member.state == State::kStored && !buckets_[member.bucket].submitted)
        member.state = State::kIdle;
    }
    return handle.error();
  }
  bucket.submitted = true;
  --open_;
  refused_ = true;
  Split(bucket);
  Leave(&Counters::plan_unlocks_refused, "a bucket could not be submitted");
  return {};
}

void LockedPlan::Refuse(Bucket& bucket, const std::string& why) {
  Submission submission = call_;
  submission.name = bucket.name;
  submission.recurs = Recurs::kInPlan;
  submission.doubts = doubts_;
  submission.request.local_error = "left the locked plan: " + why;
  (void)around_.calls.Submit(std::move(submission));  // gives no handle
  bucket.submitted = true;
  refused_ = true;
}

// Submits the stored members of a bucket that is not reduced as such.
void LockedPlan::Split(const Bucket& bucket) {
  for (const uint32_t index : bucket.members) {
    if (members_[index].state == State::kStored) Call(members_[index]);
  }
}

void LockedPlan::Leave(Unlocks reason, std::string why) {
  if (!locked_) return;
  locked_ = false;
  (around_.counters.*reason).fetch_add(1, std::memory_order_relaxed);
  const uint64_t least = around_.settings.plan_rounds;
  // A plan that has lasted may well last again.
  needed_ = rounds_ >= 4 * needed_ ? least : std::max(least, std::min(2 * needed_, kMostRounds));
  unchanged_ = 0;
  proposal_ = 0;
  if (reason == &Counters::plan_unlocks_wait) {
    const auto lacking =
        std::ranges::find_if(buckets_, [](const Bucket& b) { return !b.submitted; });
    if (lacking != buckets_.end()) why += ": it lacks " + Lacks(*lacking);
  }
  if (reason != &Counters::plan_unlocks_peer) left_ = why;
  for (Bucket& bucket : buckets_) {
    if (bucket.submitted) continue;
    Refuse(bucket, why);
    Split(bucket);
  }
  open_ = 0;
  if (!refused_) {
    // This rank has made all calls of this round: the others hear of it in the next, unless they
    // leave in this one.
    for (const Bucket& bucket : buckets_) {
      if (auto call = bucket.handle != 0 ? CallOf(bucket.handle) : nullptr)
        doubts_.push_back(std::move(call));
    }
    for (Bucket& bucket : buckets_) Refuse(bucket, why);
  }
  doubts_.clear();
}

std::shared_ptr<CollectiveEntry> LockedPlan::CallOf(uint64_t handle) const {
  std::shared_ptr<Entry> entry = around_.calls.Find(handle);
  if (!AsCollective(entry.get())) return nullptr;
  return std::static_pointer_cast<CollectiveEntry>(std::move(entry));
}

void LockedPlan::BeforeJoin(uint32_t process_set) {
  const std::lock_guard lock(mutex_);
  if (call_.process_set != process_set || closed_) return;
  LockAhead();
  Leave(&Counters::plan_unlocks_join, "this rank joins");
}

void LockedPlan::AfterTuning() {
  const std::lock_guard lock(mutex_);
  if (!closed_ && order_.empty()) LeaveIfTuned();
}

// Between two rounds. The tensors have not changed, so that the next plan need not wait longer.
void LockedPlan::LeaveIfTuned() {
  if (!locked_ || around_.tuned.changes() == changes_) return;
  Leave(&Counters::plan_unlocks_tuned, "a setting was tuned");
  needed_ = around_.settings.plan_rounds;
}

void LockedPlan::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  locked_ = false;
  agreed_ = proposal_ = 0;
  for (Member& member : members_) {
    if (member.state != State::kStored || buckets_[member.bucket].submitted) continue;
    member.state = State::kRefused;
    member.refusal = Closed().error();
  }
}

void LockedPlan::LookAtOthers() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || !locked_ || !order_.empty()) return;
  const bool left = std::ranges::any_of(buckets_, [this](const Bucket& bucket) {
    return around_.calls.OthersIn(call_.process_set, bucket.name) == Calls::Others::kRefused;
  });
  if (left) Leave(&Counters::plan_unlocks_peer, "another rank has left it");
}

void LockedPlan::AddTo(PlansState& state) const {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;
  if (!left_.empty()) state.left = left_;
  for (const Bucket& bucket : buckets_) {
    if (!locked_ || bucket.submitted) continue;
    state.open.push_back(
        {bucket.name, Lacks(bucket), around_.calls.OthersIn(call_.process_set, bucket.name)});
  }
}

// The members that are not there yet; under the mutex.
std::string LockedPlan::Lacks(const Bucket& bucket) const {
  std::string names;
  size_t count = 0;
  for (const uint32_t index : bucket.members) {
    if (members_[index].state != State::kIdle || ++count > kNamed) continue;
    names += (count > 1 ? ", '" : "'") + members_[index].name + "'";
  }
  return count > kNamed ? names + " and " + std::to_string(count - kNamed) + " more" : names;
}

void LockedPlan::EndBucket(Bucket& bucket, Status outcome) {
  around_.calls.Release(bucket.handle);
  bucket.handle = 0;
  bucket.outcome = std::move(outcome);
  if (!IsRefusal(bucket.outcome)) return;
  refused_ = true;
  Split(bucket);
  Leave(&Counters::plan_unlocks_peer, "another rank has left it");
}

Status LockedPlan::Wait(size_t index, int64_t deadline_ns) {
  for (;;) {
    std::unique_lock lock(mutex_);
    Member& member = members_[index];
    if (member.state == State::kIdle) return {};
    // Or two ranks might wait for each other's buckets.
    if (locked_ && open_ > 0)
      Leave(&Counters::plan_unlocks_wait, "it waits before all tensors of the round are there");
    if (member.state == State::kRefused) {
      member.state = State::kIdle;
      return member.refusal;
    }
    // Ranks wait for their tensors in orders of their own. After a refusal some may wait for calls
    // that this rank makes once it has heard of the other refusals, so it looks for these first.
    Bucket* bucket = refused_ ? Unheard() : nullptr;
    if (bucket == nullptr && member.state == State::kStored) bucket = &buckets_[member.bucket];
    const bool stored = bucket != nullptr;
    const uint64_t handle = stored ? bucket->handle : member.handle;
    if (!stored || handle != 0) {
      const std::shared_ptr<Entry> entry = around_.calls.Find(handle);
      lock.unlock();
      Status outcome = around_.calls.Wait(handle, deadline_ns);
      lock.lock();
      if (stored && bucket->handle != handle) continue;  // another thread has ended it meanwhile
      if (entry && !entry->complete.load(std::memory_order_acquire)) return outcome;
      if (!stored) {
        const CollectiveEntry* const call = AsCollective(entry.get());
        if (outcome.ok() && call && call->agreed && proposal_ != 0) agreed_ = call->proposal.number;
        around_.calls.Release(handle);
        member.state = State::kIdle;
        return outcome;
      }
      EndBucket(*bucket, std::move(outcome));
    }
    // Its bucket was refused, or it was another one.
    if (member.state != State::kStored || bucket != &buckets_[member.bucket]) continue;
    member.state = State::kIdle;
    if (bucket->outcome.ok()) return {};
    Error error = bucket->outcome.error();
    error.tensor = member.name;
    return error;
  }
}

// A bucket of this round whose outcome is not known yet; or null.
LockedPlan::Bucket* LockedPlan::Unheard() {
  const auto found = std::ranges::find_if(buckets_, [](const Bucket& b) { return b.handle != 0; });
  return found == buckets_.end() ? nullptr : &*found;
}

void LockedPlan::EndRound() {
  const std::lock_guard lock(mutex_);
  if (order_.empty()) return;
  if (locked_ && open_ > 0)
    Leave(&Counters::plan_unlocks_wait, "its round ended before all tensors were there");
  if (locked_) {
    if (std::ranges::all_of(buckets_, [](const Bucket& bucket) { return bucket.outcome.ok(); }))
      around_.counters.plan_rounds.fetch_add(1, std::memory_order_relaxed);
    ++rounds_;
    for (Bucket& bucket : buckets_) {
      bucket.missing = bucket.members.size();
      bucket.submitted = false;
    }
    open_ = buckets_.size();
    LeaveIfTuned();
  } else {
    const bool same = !changed_ && order_ == last_order_;
    unchanged_ = same ? unchanged_ + 1 : 0;
    if (agreed_ != 0) {
      std::vector<bool> submitted(members_.size(), false);
      for (const uint32_t index : order_) submitted[index] = true;
      const bool whole = std::ranges::all_of(proposed_, [&](const Bucket& bucket) {
        return std::ranges::all_of(bucket.members, [&](uint32_t i) { return submitted[i]; });
      });
      Lock(agreed_);
      if (changed_ || !whole)
        Leave(&Counters::plan_unlocks_changed, "the round in which it was agreed on changed");
    } else if (!same) {
      proposal_ = 0;
    } else if (proposal_ == 0 ? needed_ > 0 && unchanged_ >= needed_
                              : around_.tuned.changes() != changes_) {
      Propose();  // another one, if a setting was tuned since the last
    }
  }
  refused_ = false;
  changed_ = false;
  last_order_.swap(order_);
  order_.clear();
}

void LockedPlan::Propose() {
  changes_ = around_.tuned.changes();
  const auto [threshold, last_arriver_bytes, way] = around_.tuned.values();
  if (threshold == 0) return;  // each tensor is reduced by itself
  proposed_.clear();
  // What is apart would keep the others of its bucket from being reduced where they lie.
  struct Filling {
    std::optional<size_t> bucket;
    uint64_t bytes = 0;
  };
  std::array<Filling, 2> filling;
  Hash hash;
  // Or ranks that see a change in different rounds would cut differently.
  hash.Add(threshold);
  hash.Add(way.algorithm);
  hash.Add(way.window_bytes);
  proposed_way_ = way;
  for (const uint32_t index : order_) {
    const Member& member = members_[index];
    auto& [bucket, bytes] = filling[member.apart ? 1 : 0];
    if (!bucket || bytes + member.tensor.bytes() > threshold) {
      bucket = proposed_.size();
      proposed_.emplace_back();
      bytes = 0;
    }
    bytes += member.tensor.bytes();
    proposed_[*bucket].members.push_back(index);
    hash.Add(member.name);
    hash.Add(static_cast<uint64_t>(member.tensor.type));
    hash.Add(member.tensor.shape.size());
    for (const int64_t dim : member.tensor.shape) hash.Add(static_cast<uint64_t>(dim));
    hash.Add(member.apart ? 1 : 0);
  }
  proposal_ = hash.Finish();
}

// `number`: the same on all ranks, and of no other plan of the set.
void LockedPlan::Lock(uint64_t number) {
  std::array<char, 48> suffix{};
  std::snprintf(suffix.data(), suffix.size(), " (plan %llu, %08llx)",
                static_cast<unsigned long long>(number),
                static_cast<unsigned long long>(proposal_ & 0xffffffff));
  agreed_ = proposal_ = rounds_ = 0;
  locked_ = true;
  refused_ = false;
  around_.counters.plan_locks.fetch_add(1, std::memory_order_relaxed);
  buckets_ = std::exchange(proposed_, {});
  way_ = proposed_way_;
  for (Member& member : members_) member.bucket = static_cast<uint32_t>(buckets_.size());
  for (uint32_t k = 0; k < buckets_.size(); ++k) {
    Bucket& bucket = buckets_[k];
    bucket.missing = bucket.members.size();
    bucket.name = members_[bucket.members[0]].name;
    if (bucket.missing > 1) bucket.name += " and " + std::to_string(bucket.missing - 1) + " more";
    bucket.name += suffix.data();
    for (const uint32_t index : bucket.members) members_[index].bucket = k;
  }
  open_ = buckets_.size();
}

}  // namespace horoacc
