// What a rank of the spread controller is, its ends towards the engine and the links, and what
// ranks say to each other beside the tree.
#include "negotiate/multi_host/multi_host_controller.h"

#include <algorithm>
#include <utility>

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

MultiHostController::MultiHostController(ControlMux& mux, Place place, SetSegment& control,
                                         const Doorbells& doorbells, const Settings& settings)
    : mux_(mux),
      place_(std::move(place)),
      member_(IndexOf(place_.ranks, place_.rank)),
      tree_(TreeOf(place_, member_)),
      carries_(place_.ranks.size() > 1 &&
               ForcedAlgorithm(schedule::Goal::kAllreduce, settings).empty()),
      carries_halves_(settings.reduction != "auto"),
      control_(control),
      doorbells_(doorbells),
      released_(place_.ranks.size()),
      left_(place_.ranks.size()) {
  if (!member_) return;
  if (tree_.parent) {
    branch_.emplace(tree_.branch, kBranchTimeout);
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
  const bool join = reader.Get<uint8_t>() != 0;
  const CallName call = join ? CallName() : GetCallName(reader);
  if (!reader.ok()) return Damaged(source);
  if (end_) return {};
  WireWriter writer = Begin(MultiHostMessage::kWhoHas);
  writer.Put(static_cast<uint8_t>(join));
  if (!join) horoacc::Put(writer, call);
  Put(writer, join ? root_->WhoHasJoined() : root_->WhoHas(call));
  return mux_.Send(place_.set, source, writer.bytes());
}

Status MultiHostController::OnAttendance(WireReader& reader) {
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

Result<std::optional<Attendance>> MultiHostController::WhoHas(std::optional<TensorKey> tensor) {
  std::lock_guard lock(mutex_);
  if (end_) return std::optional<Attendance>();
  if (!tensor) {
    if (root_) return std::optional<Attendance>(root_->WhoHasJoined());
    WireWriter writer = Begin(MultiHostMessage::kWhoHas);
    writer.Put(uint8_t{1});
    HA_TRY(mux_.Send(place_.set, place_.ranks[0], writer.bytes()));
    return joins_;
  }
  const auto call = call_of_.find(tensor->id);
  if (call == call_of_.end()) return std::optional<Attendance>();
  const Own& own = own_[call->second];
  if (own.key.generation != tensor->generation) return std::optional<Attendance>();
  if (root_) return root_->WhoHas(call->second);
  WireWriter writer = Begin(MultiHostMessage::kWhoHas);
  writer.Put(uint8_t{0});
  horoacc::Put(writer, call->second);
  HA_TRY(mux_.Send(place_.set, place_.ranks[0], writer.bytes()));
  return own.attendance;
}

}  // namespace horoacc
