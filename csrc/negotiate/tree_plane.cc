#include "negotiate/tree_plane.h"

#include <algorithm>

namespace horoacc {
namespace {

constexpr uint32_t kFanOut = 4;
constexpr uint32_t kNoNumber = 0xffffffff;

enum class Message : uint8_t {
  kReady = 1,
  kSplit = 2,
  kDecision = 3,
  kPlan = 4,
  kGone = 5,
  kReject = 6
};

// Unnamed calls are keyed by their place in the ring of unnamed ids, which is the same everywhere.
std::string KeyOf(uint32_t id, std::string_view name) {
  return id < kNamedIds ? "n" + std::string(name) : "u" + std::to_string(id);
}
bool IsNamed(const std::string& key) { return key[0] == 'n'; }

}  // namespace

TreePlane::TreePlane(ControlMux& mux, uint32_t process_set, SetBoard& board,
                     const SetContext& context, const Bells& bells, const Settings& settings,
                     std::vector<int> global_ranks)
    : mux_(mux),
      process_set_(process_set),
      board_(board),
      context_(context),
      bells_(bells),
      global_ranks_(std::move(global_ranks)),
      decider_(board, context, settings) {
  if (IsRoot()) {
    plan_memory_.resize(PlanState::BytesFor(kNamedIds));
    plan_ = PlanState::Over(plan_memory_.data(), kNamedIds, settings.fusion_threshold);
  }
  // A handler's error ends the job, so the one of early messages may come with the next Pump.
  (void)mux_.Register(process_set_, [this](int source, std::span<const std::byte> payload) {
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

Status TreePlane::Announce(const Announcement& announcement) {
  std::lock_guard lock(mutex_);
  const std::string key = KeyOf(announcement.id, announcement.name);
  own_[key] = {{announcement.id, announcement.generation}, *announcement.request};
  // The generation on the board advances here too, by the last rank: rows are kept by its parity.
  std::atomic<uint64_t>& arrivals = board_.id(announcement.id).arrivals;
  uint64_t seen = arrivals.load(std::memory_order_acquire);
  for (;;) {
    if (seen >> 48 != announcement.incarnation ||
        (seen >> 16 & 0xffffffff) + 1 != announcement.generation) {
      own_.erase(key);
      return MakeError(ErrorKind::kAborted, "the id or its generation has moved on", kLookUpAgain);
    }
    const bool last = (seen & 0xffff) + 1 == context_.ranks;
    const uint64_t next = last ? (seen & ~0xffffull) + 0x10000 : seen + 1;
    if (arrivals.compare_exchange_weak(seen, next, std::memory_order_acq_rel)) break;
  }
  Disagreement complaint;
  const int me = global_ranks_[context_.me];
  if (!announcement.request->local_error.empty()) {
    complaint = {ErrorKind::kInvalid, me,
                 "tensor '" + std::string(announcement.name) + "' on rank " + std::to_string(me) +
                     ": " + announcement.request->local_error};
  }
  return Arrive(key, announcement.generation, me, *announcement.request, std::move(complaint));
}

// One more branch is ready. When all are, the news goes up, or at the root becomes a decision.
Status TreePlane::Arrive(const std::string& key, uint64_t generation, int rank,
                         const Request& request, Disagreement disagreement) {
  // News that was on its way up while the tensor was rejected is for nobody any more.
  if (const auto rejected = rejected_.find(key);
      rejected != rejected_.end() && generation <= rejected->second) {
    return {};
  }
  Pending& pending = pending_[key];
  ++pending.branches;
  pending.generation = generation;
  if (pending.disagreement.kind == ErrorKind::kOk) pending.disagreement = std::move(disagreement);
  if (!pending.has_request) {
    pending.has_request = true;
    pending.request = request;
    pending.request_rank = rank;
  } else if (pending.disagreement.kind == ErrorKind::kOk &&
             pending.request.Signature() != request.Signature()) {
    const bool ordered = pending.request_rank < rank;
    const std::string name =
        IsNamed(key) ? key.substr(1) : NameOf(request.collective) + (".noname." + key.substr(1));
    pending.disagreement = {
        ErrorKind::kMismatch, std::max(rank, pending.request_rank),
        ordered ? DescribeMismatch(name, pending.request_rank, pending.request, rank, request)
                : DescribeMismatch(name, rank, request, pending.request_rank, pending.request)};
  }
  if (pending.branches < Children().size() + 1) return {};
  Pending complete = std::move(pending);
  pending_.erase(key);
  if (!IsRoot()) return Forward(key, complete);
  return Decide(key, std::move(complete));
}

Status TreePlane::Forward(const std::string& key, const Pending& pending) {
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(Message::kReady));
  const auto number = numbers_.find(key);
  const bool warm = number != numbers_.end() && pending.disagreement.kind == ErrorKind::kOk &&
                    known_[number->second].request.Signature() == pending.request.Signature();
  writer.Put(static_cast<uint8_t>(warm));
  writer.Put(static_cast<int32_t>(pending.request_rank));
  writer.Put(pending.generation);
  if (warm) {
    writer.Put(number->second);
  } else {
    writer.Put(std::string_view(key));
    writer.Put(pending.request);
    writer.Put(static_cast<uint8_t>(pending.disagreement.kind));
    writer.Put(static_cast<int32_t>(pending.disagreement.culprit));
    writer.Put(std::string_view(pending.disagreement.text));
  }
  return mux_.Send(process_set_, Parent(), writer.bytes());
}

Status TreePlane::OnMessage(int source, std::span<const std::byte> payload) {
  std::lock_guard lock(mutex_);
  WireReader reader(payload);
  switch (static_cast<Message>(reader.Get<uint8_t>())) {
    case Message::kReady:
      HA_TRY(OnReady(reader));
      break;
    case Message::kSplit: {
      const auto bucket = reader.Get<uint32_t>();
      if (!IsRoot() || bucket == 0 || bucket > *plan_.bucket_count) break;
      if (plan_.buckets[bucket - 1].split || !decider_.HasSlots()) break;
      if (const Bucket ready = SplitBucket(plan_, bucket); !ready.empty())
        HA_TRY(PublishRun(ready));
      break;
    }
    case Message::kDecision:
      return OnDecision(payload);
    case Message::kPlan:
      return OnPlan(payload);
    case Message::kReject:
      return OnReject(payload);
    case Message::kGone:
      HA_TRY(SendDown(payload));
      gone_ = reader.Get<int32_t>();
      break;
    default:
      return MakeError(ErrorKind::kSystem, "unknown control message", source);
  }
  if (!reader.ok()) return MakeError(ErrorKind::kSystem, "a control message is damaged", source);
  return {};
}

Status TreePlane::OnReady(WireReader& reader) {
  const bool warm = reader.Get<uint8_t>() != 0;
  const auto rank = reader.Get<int32_t>();
  const auto generation = reader.Get<uint64_t>();
  if (warm) {
    const auto number = reader.Get<uint32_t>();
    if (!reader.ok() || number >= known_.size()) {
      return MakeError(ErrorKind::kSystem, "a control message names an unknown tensor", rank);
    }
    const Known known = known_[number];
    return Arrive(known.key, generation, rank, known.request, {});
  }
  const std::string key = reader.GetText();
  const Request request = reader.GetRequest();
  Disagreement disagreement;
  disagreement.kind = static_cast<ErrorKind>(reader.Get<uint8_t>());
  disagreement.culprit = reader.Get<int32_t>();
  disagreement.text = reader.GetText();
  if (!reader.ok() || key.empty())
    return MakeError(ErrorKind::kSystem, "a control message is damaged", rank);
  return Arrive(key, generation, rank, request, std::move(disagreement));
}

// ---- the root

uint32_t TreePlane::NumberOf(const std::string& key) {
  if (const auto found = numbers_.find(key); found != numbers_.end()) return found->second;
  if (!IsNamed(key) || known_.size() >= kNamedIds) return kNoNumber;
  return static_cast<uint32_t>(known_.size());
}

Status TreePlane::Decide(const std::string& key, Pending pending) {
  if (!decider_.HasSlots() || !backlog_.empty()) {
    backlog_.emplace_back(key, std::move(pending));
    board_.header().starved.store(1, std::memory_order_release);
    for (uint32_t r = 0; r < context_.ranks; ++r)
      bells_.Ring(static_cast<int>(board_.local(r)), Urgency::kWork);
    return {};
  }
  const auto submitted = own_.find(key);
  if (submitted == own_.end()) {
    return MakeError(ErrorKind::kSystem,
                     "a control message tells of a tensor that was not submitted");
  }
  const TensorKey own = submitted->second.key;
  Disagreement disagreement = std::move(pending.disagreement);
  if (const int gone = board_.header().gone.load(std::memory_order_acquire) - 1; gone >= 0) {
    disagreement = {ErrorKind::kAborted, gone, "rank " + std::to_string(gone) + " has shut down"};
  }
  const uint32_t number = NumberOf(key);
  if (disagreement.kind != ErrorKind::kOk) {
    Decision decision;
    decision.kind = Decision::Kind::kError;
    decision.error = disagreement.kind;
    decision.culprit = disagreement.culprit;
    decision.text = disagreement.text;
    HA_TRY(Publish(decision, {key}));
    if (number == kNoNumber) return {};
    const Bucket rest = SkipItem(plan_, number);
    return rest.empty() ? Status() : PublishRun(rest);
  }
  const Row& row = board_.row(context_.me, own.id, own.generation);
  const bool fusable = number != kNoNumber && pending.request.collective == Collective::kAllreduce;
  if (!fusable) {
    for (const Decision& decision : decider_.Run({&own, 1})) HA_TRY(Publish(decision, {key}));
    return {};
  }
  ready_[number] = own;
  if (number == known_.size()) {
    known_.push_back({key, pending.request});
    numbers_[key] = number;
  }
  const ReadyItem item{number, row.sequence, row.pause, BytesOf(board_, context_, own), true};
  for (const Bucket& bucket : TakeReady(plan_, {&item, 1})) HA_TRY(PublishRun(bucket));
  return *plan_.bucket_count > plan_published_ ? PublishPlan() : Status();
}

Status TreePlane::PublishRun(const Bucket& bucket) {
  std::vector<TensorKey> keys;
  std::unordered_map<uint32_t, uint32_t> numbers;  // board id -> number
  for (const uint32_t number : bucket) {
    keys.push_back(ready_.at(number));
    numbers[keys.back().id] = number;
  }
  for (const Decision& decision : decider_.Run(keys)) {
    std::vector<std::string> names;
    for (const uint32_t id : decision.ids) names.push_back(known_[numbers.at(id)].key);
    HA_TRY(Publish(decision, names));
  }
  return {};
}

Status TreePlane::Publish(const Decision& decision, const std::vector<std::string>& keys) {
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(Message::kDecision));
  writer.Put(static_cast<uint8_t>(decision.kind));
  writer.Put(static_cast<uint8_t>((decision.done ? 1 : 0) | (decision.shared ? 2 : 0)));
  writer.Put(decision.slot);
  writer.Put(static_cast<uint8_t>(decision.error));
  writer.Put(static_cast<int32_t>(decision.culprit));
  writer.Put(std::string_view(decision.text));
  writer.Put(static_cast<uint32_t>(keys.size()));
  for (const std::string& key : keys) {
    const auto found = numbers_.find(key);
    // A number that the others have not heard of comes with its name.
    const uint32_t number = found == numbers_.end() ? kNoNumber : found->second;
    writer.Put(number);
    writer.Put(number < numbers_told_ ? std::string_view() : std::string_view(key));
    if (number == numbers_told_) ++numbers_told_;
  }
  HA_TRY(SendDown(writer.bytes()));
  Take(decision, keys);
  bells_.Ring(static_cast<int>(board_.local(context_.me)),
              decision.done ? Urgency::kQuiet : Urgency::kWork);
  return {};
}

Status TreePlane::PublishPlan() {
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(Message::kPlan));
  writer.Put(plan_published_);
  writer.Put(*plan_.bucket_count - plan_published_);
  plan_members_.resize(*plan_.bucket_count);
  for (; plan_published_ < *plan_.bucket_count; ++plan_published_) {
    const PlanBucket& bucket = plan_.buckets[plan_published_];
    const auto members = plan_.order.subspan(bucket.first, bucket.count);
    writer.Put(bucket.count);
    for (const uint32_t number : members) writer.Put(number);
    plan_members_[plan_published_].assign(members.begin(), members.end());
  }
  return SendDown(writer.bytes());
}

Status TreePlane::SendDown(std::span<const std::byte> payload) {
  for (const int child : Children()) HA_TRY(mux_.Send(process_set_, child, payload));
  return {};
}

// ---- every rank

void TreePlane::Take(Decision decision, const std::vector<std::string>& keys) {
  decision.ids.clear();
  for (const std::string& key : keys) {
    const auto own = own_.find(key);
    if (own == own_.end()) continue;  // the engine reports the decision it cannot carry out
    decision.ids.push_back(own->second.key.id);
    if (const auto number = numbers_.find(key); number != numbers_.end()) {
      local_ids_[own->second.key.id] = number->second;
      if (decision.kind == Decision::Kind::kRun)
        known_[number->second].request = std::move(own->second.request);
    }
    own_.erase(own);
  }
  decision.end = ++decided_;
  if (IsRoot()) {
    for (const uint32_t id : decision.ids) board_.id(id).last_decision.store(decision.end);
  }
  decisions_.push_back(std::move(decision));
}

Status TreePlane::OnDecision(std::span<const std::byte> payload) {
  HA_TRY(SendDown(payload));
  WireReader reader(payload);
  (void)reader.Get<uint8_t>();
  Decision decision;
  decision.kind = static_cast<Decision::Kind>(reader.Get<uint8_t>());
  const auto flags = reader.Get<uint8_t>();
  decision.done = flags & 1;
  decision.shared = flags & 2;
  decision.slot = reader.Get<uint64_t>();
  decision.error = static_cast<ErrorKind>(reader.Get<uint8_t>());
  decision.culprit = reader.Get<int32_t>();
  decision.text = reader.GetText();
  std::vector<std::string> keys;
  const uint32_t count = reader.GetCount(2 * sizeof(uint32_t));
  for (uint32_t k = 0; k < count; ++k) {
    const auto number = reader.Get<uint32_t>();
    std::string key = reader.GetText();
    if (key.empty()) {
      if (number >= known_.size())
        return MakeError(ErrorKind::kSystem, "a decision names an unknown tensor");
      key = known_[number].key;
    } else if (number != kNoNumber) {
      if (number != known_.size())
        return MakeError(ErrorKind::kSystem, "a decision's number is out of order");
      known_.push_back({key, {}});
      numbers_[key] = number;
    }
    keys.push_back(std::move(key));
  }
  if (!reader.ok()) return MakeError(ErrorKind::kSystem, "a decision is damaged");
  Take(std::move(decision), keys);
  return {};
}

// Climbs to the root, which closes the generation (once) and sends it down to everybody.
Status TreePlane::Reject(const TensorName& tensor, const Error& error) {
  std::lock_guard lock(mutex_);
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(Message::kReject));
  writer.Put(std::string_view(KeyOf(tensor.id, tensor.name)));
  writer.Put(tensor.id);
  writer.Put(tensor.generation);
  writer.Put(static_cast<uint8_t>(error.kind));
  writer.Put(static_cast<int32_t>(error.culprit));
  writer.Put(std::string_view(error.message));
  if (IsRoot()) return OnReject(writer.bytes());
  return mux_.Send(process_set_, global_ranks_[0], writer.bytes());
}

Status TreePlane::OnReject(std::span<const std::byte> payload) {
  WireReader reader(payload);
  (void)reader.Get<uint8_t>();
  const std::string key = reader.GetText();
  const auto id = reader.Get<uint32_t>();
  const auto generation = reader.Get<uint64_t>();
  Decision decision;
  decision.kind = Decision::Kind::kError;
  decision.error = static_cast<ErrorKind>(reader.Get<uint8_t>());
  decision.culprit = reader.Get<int32_t>();
  decision.text = reader.GetText();
  if (!reader.ok() || id >= kIds) return MakeError(ErrorKind::kSystem, "a rejection is damaged");
  if (IsRoot() && !board_.CloseGeneration(id, generation)) return {};
  HA_TRY(SendDown(payload));
  pending_.erase(key);
  rejected_[key] = generation;
  Take(std::move(decision), {key});
  if (!IsRoot()) return {};
  const auto number = numbers_.find(key);
  if (number == numbers_.end()) return {};
  const Bucket rest = SkipItem(plan_, number->second);
  return rest.empty() ? Status() : PublishRun(rest);
}

Status TreePlane::OnPlan(std::span<const std::byte> payload) {
  HA_TRY(SendDown(payload));
  WireReader reader(payload);
  (void)reader.Get<uint8_t>();
  const auto first = reader.Get<uint32_t>();
  const uint32_t buckets = reader.GetCount(sizeof(uint32_t));
  if (first != plan_members_.size()) return MakeError(ErrorKind::kSystem, "a plan is out of order");
  for (uint32_t b = 0; b < buckets && reader.ok(); ++b) {
    std::vector<uint32_t>& members = plan_members_.emplace_back();
    const uint32_t count = reader.GetCount(sizeof(uint32_t));
    for (uint32_t k = 0; k < count; ++k) members.push_back(reader.Get<uint32_t>());
  }
  return reader.ok() ? Status() : MakeError(ErrorKind::kSystem, "a plan is damaged");
}

Status TreePlane::Unblock(std::span<const uint32_t> in_flight) {
  std::lock_guard lock(mutex_);
  std::vector<uint32_t> numbers;
  for (const uint32_t id : in_flight) {
    if (const auto found = local_ids_.find(id); found != local_ids_.end())
      numbers.push_back(found->second);
  }
  std::ranges::sort(numbers);
  for (uint32_t b = 0; b < plan_members_.size(); ++b) {
    const auto here =
        static_cast<size_t>(std::ranges::count_if(plan_members_[b], [&](uint32_t number) {
          return std::ranges::binary_search(numbers, number);
        }));
    if (here == 0 || here == plan_members_[b].size()) continue;
    WireWriter writer;
    writer.Put(static_cast<uint8_t>(Message::kSplit));
    writer.Put(b + 1);
    if (!IsRoot()) {
      HA_TRY(mux_.Send(process_set_, global_ranks_[0], writer.bytes()));
    } else if (!plan_.buckets[b].split && decider_.HasSlots()) {
      if (const Bucket ready = SplitBucket(plan_, b + 1); !ready.empty()) HA_TRY(PublishRun(ready));
    }
  }
  return {};
}

Status TreePlane::Pump() {
  if (!IsRoot()) return {};
  std::lock_guard lock(mutex_);
  HA_TRY(DecideBacklog());
  const int gone = board_.header().gone.load(std::memory_order_acquire) - 1;
  if (gone < 0 || gone_ >= 0) return {};
  gone_ = gone;
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(Message::kGone));
  writer.Put(static_cast<int32_t>(gone));
  return SendDown(writer.bytes());
}

int TreePlane::Gone() {
  std::lock_guard lock(mutex_);
  return gone_;
}

Status TreePlane::DecideBacklog() {
  while (!backlog_.empty() && decider_.HasSlots()) {
    std::deque<std::pair<std::string, Pending>> rest = std::move(backlog_);
    backlog_.clear();
    auto [key, pending] = std::move(rest.front());
    rest.pop_front();
    Status decided = Decide(key, std::move(pending));
    backlog_ = std::move(rest);
    HA_TRY(std::move(decided));
  }
  if (backlog_.empty()) board_.header().starved.store(0, std::memory_order_release);
  return {};
}

Result<std::optional<Decision>> TreePlane::Next() {
  std::lock_guard lock(mutex_);
  if (decisions_.empty()) return std::optional<Decision>();
  std::optional<Decision> next = std::move(decisions_.front());
  decisions_.pop_front();
  return next;
}

Status TreePlane::Finish(const Decision& decision) {
  Cursor& cursor = board_.cursor(context_.me);
  if (decision.kind == Decision::Kind::kRun && !decision.done) {
    cursor.slots.store(decision.slot + 1, std::memory_order_release);
  }
  cursor.words.store(decision.end, std::memory_order_release);
  if (!IsRoot() && board_.header().starved.load(std::memory_order_acquire) != 0) {
    bells_.Ring(static_cast<int>(board_.local(0)), Urgency::kWork);
  }
  return {};
}

}  // namespace horoacc
