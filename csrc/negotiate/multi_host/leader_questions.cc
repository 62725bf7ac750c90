// How a leader asks the root which ranks have submitted a call or have joined, and passes on the
// answers.
#include <utility>

#include "negotiate/multi_host/leader.h"

namespace horoacc {
namespace {

// The question about a call or, without one, about the join; also the head of its answer.
WireWriter BeginWhoHas(const std::optional<CallName>& call) {
  WireWriter writer = Begin(MultiHostMessage::kWhoHas);
  writer.Put(static_cast<uint8_t>(call ? 0 : 1));
  if (call) Put(writer, *call);
  return writer;
}

}  // namespace

// Questions go up to the root, each subject once at a time; the answer comes back to all that
// asked.

Status Leader::OnWhoHas(const Subject& subject, std::optional<uint32_t> child,
                        std::optional<TensorKey> own) {
  const auto [asked, fresh] = asked_.try_emplace(subject);
  if (child) {
    asked->second.children.push_back(*child);
  } else {
    asked->second.own.push_back(own);
  }
  if (root_)
    return OnAttendance(subject, subject ? root_->WhoHas(*subject) : root_->WhoHasJoined());
  return fresh ? SendUp(BeginWhoHas(subject)) : Status();
}

Status Leader::OnAttendance(const Subject& subject, const std::optional<Attendance>& attendance) {
  const auto found = asked_.find(subject);
  if (found == asked_.end()) return {};
  const Asked asked = std::move(found->second);
  asked_.erase(found);
  for (const std::optional<TensorKey>& key : asked.own) log_.TakeNews({key, attendance});
  WireWriter writer = BeginWhoHas(subject);
  Put(writer, attendance);
  for (const uint32_t child : asked.children)
    HA_TRY(mux_.Send(place_.set, GlobalRankOf(child), writer.bytes()));
  return {};
}

}  // namespace horoacc
