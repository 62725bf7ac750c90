// What a rank of the tree controller is, and its ends towards the engine and the links.
#include "negotiate/tree/tree_controller.h"

#include <algorithm>
#include <utility>

#include "negotiate/tree/tree_messages.h"

namespace horoacc {

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

}  // namespace horoacc
