#include "negotiate/spread_plane.h"

#include <algorithm>
#include <utility>

namespace horoacc {
namespace {

std::optional<uint32_t> IndexOf(const std::vector<int>& ranks, int rank) {
  const auto found = std::ranges::find(ranks, rank);
  if (found == ranks.end()) return std::nullopt;
  return static_cast<uint32_t>(found - ranks.begin());
}

WireWriter Begin(SpreadMessage kind) {
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(kind));
  return writer;
}

void Put(WireWriter& writer, const std::optional<Attendance>& attendance) {
  writer.Put(static_cast<uint8_t>(attendance.has_value()));
  if (!attendance) return;
  Put(writer, attendance->ready);
  Put(writer, attendance->missing);
}

std::optional<Attendance> GetAttendance(WireReader& reader) {
  if (reader.Get<uint8_t>() == 0) return std::nullopt;
  Attendance attendance;
  attendance.ready = GetList<int>(reader);
  attendance.missing = GetList<int>(reader);
  return attendance;
}

}  // namespace

SpreadPlane::SpreadPlane(ControlMux& mux, Place place, SetBoard& board, const Bells& bells,
                         const Settings& settings)
    : mux_(mux),
      place_(std::move(place)),
      member_(IndexOf(place_.ranks, place_.rank)),
      board_(board),
      bells_(bells),
      released_(place_.ranks.size()),
      left_(place_.ranks.size()) {
  if (!member_) return;
  if (*member_ == 0) root_.emplace(place_.ranks, settings.fusion_threshold);
  mux_.Register(place_.set, [this](int source, std::span<const std::byte> payload) {
    return OnMessage(source, payload);
  });
}

SpreadPlane::~SpreadPlane() {
  if (member_) mux_.Unregister(place_.set);
}

Status SpreadPlane::SendToRoot(const WireWriter& writer) {
  return mux_.Send(place_.set, place_.ranks[0], writer.bytes());
}

Status SpreadPlane::SendToAll(const WireWriter& writer) {
  for (const int rank : place_.ranks) {
    if (rank != place_.rank) HA_TRY(mux_.Send(place_.set, rank, writer.bytes()));
  }
  return {};
}

Result<Announced> SpreadPlane::Announce(const Announcement& announcement) {
  std::lock_guard lock(mutex_);
  if (end_) return Announced::kTaken;  // nothing is decided any more; the driver fails the call
  IdEntry& entry = board_.id(announcement.id);
  const Arrivals seen = entry.arrivals.load(std::memory_order_acquire);
  if (seen.incarnation() != announcement.incarnation || seen.open() != announcement.generation)
    return Announced::kLookUpAgain;
  entry.last_decision.store(kUndecided, std::memory_order_relaxed);
  entry.arrivals.store(seen.Closed(), std::memory_order_release);

  CallName call{!announcement.name.empty(), std::string(announcement.name), announcement.number};
  if (call.named) call.number = 0;
  call_of_[announcement.id] = call;
  own_[call] = {{announcement.id, announcement.generation}, std::nullopt};
  if (root_) {
    const Row& row = board_.row(0, announcement.id, announcement.generation);
    HA_TRY(Tell(root_->Ready(0, call, *announcement.request, decided_,
                             {announcement.id, row.sequence, row.pause})));
    return Announced::kTaken;
  }
  WireWriter writer = Begin(SpreadMessage::kReady);
  Put(writer, call);
  writer.Put(decided_);
  writer.Put(*announcement.request);
  HA_TRY(SendToRoot(writer));
  return Announced::kTaken;
}

Status SpreadPlane::Unblock(std::span<const uint32_t>) {
  std::lock_guard lock(mutex_);
  if (end_ || own_.empty()) return {};
  if (root_) return Tell(root_->Blocked(0));
  return SendToRoot(Begin(SpreadMessage::kBlocked));
}

Status SpreadPlane::Join(uint64_t unnamed) {
  std::lock_guard lock(mutex_);
  if (end_) return {};
  board_.cursor(0).joined.fetch_add(1, std::memory_order_release);  // for the stall watch
  joins_.reset();
  if (root_) return Tell(root_->Joined(0, unnamed));
  WireWriter writer = Begin(SpreadMessage::kJoined);
  writer.Put(unnamed);
  return SendToRoot(writer);
}

Status SpreadPlane::Reject(TensorKey tensor, const Error& error) {
  std::lock_guard lock(mutex_);
  const auto call = call_of_.find(tensor.id);
  if (end_ || call == call_of_.end() || own_[call->second].key.generation != tensor.generation)
    return {};
  if (root_) return Tell(root_->Reject(CallName(call->second), error));
  WireWriter writer = Begin(SpreadMessage::kReject);
  Put(writer, call->second);
  horoacc::Put(writer, error);
  return SendToRoot(writer);
}

Status SpreadPlane::Pump() {
  const SetEnd end = board_.header().end.load(std::memory_order_acquire);
  if (!end || !member_) return {};
  std::lock_guard lock(mutex_);
  if (end_ || std::exchange(end_told_, true)) return {};
  if (root_) return EndAll(end);
  WireWriter writer = Begin(SpreadMessage::kEnd);
  writer.Put(end.wire());
  return SendToRoot(writer);
}

// The root's: in the order of the decisions.
Status SpreadPlane::EndAll(SetEnd end) {
  end_ = end;
  WireWriter writer = Begin(SpreadMessage::kEnd);
  writer.Put(end.wire());
  return SendToAll(writer);
}

Result<std::optional<Decision>> SpreadPlane::Next() {
  std::lock_guard lock(mutex_);
  if (decisions_.empty()) return std::optional<Decision>();
  std::optional<Decision> next = std::move(decisions_.front());
  decisions_.pop_front();
  return next;
}

Status SpreadPlane::Finish(const Decision& decision) {
  (void)board_.FinishUpTo(decision.end, std::nullopt);
  return {};
}

SetEnd SpreadPlane::Ended() {
  std::lock_guard lock(mutex_);
  return end_;
}

Status SpreadPlane::Release() {
  std::lock_guard lock(mutex_);
  if (!end_ || !decisions_.empty() || std::exchange(release_told_, true)) return {};
  released_[*member_] = true;
  return SendToAll(Begin(SpreadMessage::kReleased));
}

Status SpreadPlane::SayLeft() {
  std::lock_guard lock(mutex_);
  left_[*member_] = true;
  return SendToAll(Begin(SpreadMessage::kLeft));
}

bool SpreadPlane::HasLeft(int rank) {
  std::lock_guard lock(mutex_);
  const std::optional<uint32_t> member = IndexOf(place_.ranks, rank);
  return member && left_[*member];
}

bool SpreadPlane::Released() {
  std::lock_guard lock(mutex_);
  for (size_t m = 0; m < place_.ranks.size(); ++m) {
    if (!released_[m] && !place_.has_left(place_.ranks[m])) return false;
  }
  return true;
}

Status SpreadPlane::OnMessage(int source, std::span<const std::byte> payload) {
  std::lock_guard lock(mutex_);
  WireReader reader(payload);
  const auto kind = static_cast<SpreadMessage>(reader.Get<uint8_t>());
  const std::optional<uint32_t> member = IndexOf(place_.ranks, source);
  if (!member || member == member_) return Damaged(source);
  if (kind == SpreadMessage::kReleased) {
    released_[*member] = true;
    return {};
  }
  if (kind == SpreadMessage::kLeft) {
    left_[*member] = true;
    return {};
  }
  if (root_) {
    return end_ ? Status() : AtRoot(*member, kind, reader);
  }
  if (source != place_.ranks[0]) return Damaged(source);
  if (kind == SpreadMessage::kWhoHas) return OnAttendance(reader);
  if (kind == SpreadMessage::kEnd) {
    const SetEnd end = SetEnd::FromWire(reader.Get<int32_t>());
    if (!reader.ok()) return Damaged(source);
    end_ = end;
    SetEnd none;
    board_.header().end.compare_exchange_strong(none, end);
    return {};
  }
  if (kind != SpreadMessage::kDecision) return Damaged(source);
  SpreadDecision spread = GetSpreadDecision(reader);
  if (!reader.ok()) return Damaged(source);
  return Take(std::move(spread));
}

Status SpreadPlane::AtRoot(uint32_t member, SpreadMessage kind, WireReader& reader) {
  const int source = place_.ranks[member];
  switch (kind) {
    case SpreadMessage::kReady: {
      const CallName call = GetCallName(reader);
      const auto seen = reader.Get<uint64_t>();
      Request request = reader.GetRequest();
      if (!reader.ok()) return Damaged(source);
      return Tell(root_->Ready(member, call, std::move(request), seen));
    }
    case SpreadMessage::kJoined: {
      const auto unnamed = reader.Get<uint64_t>();
      if (!reader.ok()) return Damaged(source);
      return Tell(root_->Joined(member, unnamed));
    }
    case SpreadMessage::kBlocked:
      return Tell(root_->Blocked(member));
    case SpreadMessage::kReject: {
      const CallName call = GetCallName(reader);
      Error error = GetError(reader);
      if (!reader.ok()) return Damaged(source);
      return Tell(root_->Reject(call, std::move(error)));
    }
    case SpreadMessage::kEnd: {
      const SetEnd end = SetEnd::FromWire(reader.Get<int32_t>());
      if (!reader.ok()) return Damaged(source);
      SetEnd none;
      board_.header().end.compare_exchange_strong(none, end);
      return EndAll(end);
    }
    case SpreadMessage::kWhoHas:
      return OnWhoHas(member, reader);
    default:
      return Damaged(source);
  }
}

Status SpreadPlane::OnWhoHas(uint32_t member, WireReader& reader) {
  const bool join = reader.Get<uint8_t>() != 0;
  const CallName call = join ? CallName() : GetCallName(reader);
  if (!reader.ok()) return Damaged(place_.ranks[member]);
  WireWriter writer = Begin(SpreadMessage::kWhoHas);
  writer.Put(static_cast<uint8_t>(join));
  if (!join) horoacc::Put(writer, call);
  Put(writer, join ? root_->WhoHasJoined() : root_->WhoHas(call));
  return mux_.Send(place_.set, place_.ranks[member], writer.bytes());
}

Status SpreadPlane::OnAttendance(WireReader& reader) {
  const bool join = reader.Get<uint8_t>() != 0;
  const CallName call = join ? CallName() : GetCallName(reader);
  std::optional<Attendance> attendance = GetAttendance(reader);
  if (!reader.ok()) return Damaged(place_.ranks[0]);
  if (join) {
    joins_ = std::move(attendance);
  } else if (const auto own = own_.find(call); own != own_.end()) {
    own->second.attendance = std::move(attendance);
  }
  return {};
}

Result<std::optional<Attendance>> SpreadPlane::WhoHas(std::optional<TensorKey> tensor) {
  std::lock_guard lock(mutex_);
  if (end_) return std::optional<Attendance>();
  if (!tensor) {
    if (root_) return std::optional<Attendance>(root_->WhoHasJoined());
    WireWriter writer = Begin(SpreadMessage::kWhoHas);
    writer.Put(uint8_t{1});
    HA_TRY(SendToRoot(writer));
    return joins_;
  }
  const auto call = call_of_.find(tensor->id);
  if (call == call_of_.end()) return std::optional<Attendance>();
  const Own& own = own_[call->second];
  if (own.key.generation != tensor->generation) return std::optional<Attendance>();
  if (root_) return root_->WhoHas(call->second);
  WireWriter writer = Begin(SpreadMessage::kWhoHas);
  writer.Put(uint8_t{0});
  horoacc::Put(writer, call->second);
  HA_TRY(SendToRoot(writer));
  return own.attendance;
}

Status SpreadPlane::Tell(SpreadRoot::Verdicts verdicts) {
  for (SpreadDecision& verdict : verdicts) {
    WireWriter writer = Begin(SpreadMessage::kDecision);
    horoacc::Put(writer, verdict);
    HA_TRY(SendToAll(writer));
    HA_TRY(Take(std::move(verdict)));
  }
  if (!verdicts.empty()) bells_.Ring(place_.local_rank, Urgency::kWork);
  return {};
}

// Puts this rank's own ids in.
Status SpreadPlane::Take(SpreadDecision spread) {
  Decision decision = std::move(spread.decision);
  decision.end = ++decided_;
  if (decision.kind == Decision::Kind::kJoin) {
    board_.cursor(0).joined.fetch_add(1, std::memory_order_release);
    joins_.reset();
  }
  for (const CallName& call : spread.calls) {
    const auto own = own_.find(call);
    if (own == own_.end()) {
      if (decision.kind == Decision::Kind::kError || decision.partial) continue;
      return MakeError(ErrorKind::kSystem,
                       "a decision names a tensor that this rank has not submitted");
    }
    const TensorKey key = own->second.key;
    board_.id(key.id).last_decision.store(decided_, std::memory_order_relaxed);
    decision.ids.push_back(key.id);
    decision.generations.push_back(key.generation);
    call_of_.erase(key.id);
    own_.erase(own);
  }
  decisions_.push_back(std::move(decision));
  return {};
}

}  // namespace horoacc
