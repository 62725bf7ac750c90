#include "negotiate/multi_host/attendance_questions.h"

#include <utility>

namespace horoacc {
namespace {

// The question about a call or, without one, about the join; also the head of its answer.
WireWriter BeginWhoHas(const std::optional<CallName>& call) {
  WireWriter writer = Begin(MultiHostMessage::kWhoHas);
  writer.Put(static_cast<uint8_t>(call ? 0 : 1));
  if (call) Put(writer, *call);
  return writer;
}

std::optional<CallName> GetSubject(WireReader& reader) {
  if (reader.Get<uint8_t>() != 0) return std::nullopt;
  return GetCallName(reader);
}

}  // namespace

Status AttendanceQuestions::Ask(const Subject& subject, std::optional<TensorKey> key) {
  return AskRoot(subject, [&](Askers& askers) { askers.own.push_back(key); });
}

Status AttendanceQuestions::FromBelow(WireReader& reader, uint32_t child) {
  const Subject subject = GetSubject(reader);
  if (!reader.ok()) return Damaged(links_.GlobalRankOf(child));
  return AskRoot(subject, [&](Askers& askers) { askers.children.push_back(child); });
}

template <typename Add>
Status AttendanceQuestions::AskRoot(const Subject& subject, Add add) {
  const auto [asked, fresh] = asked_.try_emplace(subject);
  asked->second.again = !fresh;
  add(fresh ? asked->second.now : asked->second.later);
  if (root_) return Answer(subject, subject ? root_->WhoHas(*subject) : root_->WhoHasJoined());
  return fresh ? links_.SendUp(BeginWhoHas(subject)) : Status();
}

Status AttendanceQuestions::FromAbove(WireReader& reader) {
  const Subject subject = GetSubject(reader);
  const std::optional<Attendance> attendance = GetAttendance(reader);
  if (!reader.ok()) return Damaged(links_.GlobalRankOf(*links_.tree().parent));
  return Answer(subject, attendance);
}

Status AttendanceQuestions::Answer(const Subject& subject,
                                   const std::optional<Attendance>& attendance) {
  const auto found = asked_.find(subject);
  if (found == asked_.end()) return {};
  const Asked asked = std::move(found->second);
  asked_.erase(found);
  if (asked.again) {
    asked_[subject].now = asked.later;
    HA_TRY(links_.SendUp(BeginWhoHas(subject)));
  }
  for (const std::optional<TensorKey>& key : asked.now.own) log_.TakeNews({key, attendance});
  WireWriter writer = BeginWhoHas(subject);
  Put(writer, attendance);
  for (const uint32_t child : asked.now.children) HA_TRY(links_.Send(child, writer.bytes()));
  return {};
}

}  // namespace horoacc
