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
  const auto [asked, fresh] = asked_.try_emplace(subject);
  asked->second.own.push_back(key);
  return AskRoot(subject, fresh);
}

Status AttendanceQuestions::FromBelow(WireReader& reader, uint32_t child) {
  const Subject subject = GetSubject(reader);
  if (!reader.ok()) return Damaged(links_.GlobalRankOf(child));
  const auto [asked, fresh] = asked_.try_emplace(subject);
  asked->second.children.push_back(child);
  return AskRoot(subject, fresh);
}

Status AttendanceQuestions::AskRoot(const Subject& subject, bool fresh) {
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
  for (const std::optional<TensorKey>& key : asked.own) log_.TakeNews({key, attendance});
  WireWriter writer = BeginWhoHas(subject);
  Put(writer, attendance);
  for (const uint32_t child : asked.children) HA_TRY(links_.Send(child, writer.bytes()));
  return {};
}

}  // namespace horoacc
