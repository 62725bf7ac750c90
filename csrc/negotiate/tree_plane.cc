// What a rank of the tree plane is, and its ends towards the engine and the links.
#include "negotiate/tree_plane.h"

#include <algorithm>
#include <utility>

#include "negotiate/tree_messages.h"

namespace horoacc {

TreePlane::TreePlane(ControlMux& mux, uint32_t process_set, SetBoard& board,
                     const SetContext& context, const Bells& bells, const Settings& settings,
                     std::vector<int> global_ranks)
    : mux_(mux),
      process_set_(process_set),
      board_(board),
      context_(context),
      bells_(bells),
      global_ranks_(std::move(global_ranks)) {
  if (context_.me == 0) root_.emplace(board, context, settings, global_ranks_);
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

uint32_t TreePlane::BranchOf(int global_rank) const {
  const std::vector<int> children = Children();
  const auto child = std::ranges::find(children, global_rank);
  return child == children.end() ? 0 : 2u << (child - children.begin());
}

Status TreePlane::OnMessage(int source, std::span<const std::byte> payload) {
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

SetEnd TreePlane::Ended() {
  std::lock_guard lock(mutex_);
  return end_;
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
