#include "negotiate/multi_host/multi_host_messages.h"

#include <algorithm>
#include <set>

namespace horoacc {
namespace {

// Of news of a call.
constexpr uint8_t kByNumber = 1;    ///< the call and its request go by a number
constexpr uint8_t kWithInputs = 2;  ///< inputs follow
constexpr uint8_t kShared = 4;      ///< ReadySet::shared
constexpr uint8_t kDirect = 8;      ///< ReadyNews::direct
constexpr uint8_t kProposes = 16;   ///< a proposal follows

enum class CallForm : uint8_t { kUnnamed = 0, kNamed = 1, kNumber = 2 };

void Put(WireWriter& writer, const Proposal& proposal) {
  writer.Put(proposal.plan);
  writer.Put(proposal.number);
}

Proposal GetProposal(WireReader& reader) {
  const auto plan = reader.Get<uint64_t>();
  return {plan, reader.Get<uint64_t>()};
}

}  // namespace

WireWriter Begin(MultiHostMessage kind) {
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(kind));
  return writer;
}

void Put(WireWriter& writer, const BegunRounds& begun) {
  Put(writer, begun.least);
  Put(writer, begun.most);
}

BegunRounds GetBegun(WireReader& reader) {
  BegunRounds begun;
  begun.least = GetList<uint64_t>(reader);
  begun.most = GetList<uint64_t>(reader);
  return begun;
}

void Put(WireWriter& writer, const CallName& call, const CallNumbers* numbers) {
  const uint64_t* const number = numbers ? numbers->NumberOf(call) : nullptr;
  const CallForm form = number       ? CallForm::kNumber
                        : call.named ? CallForm::kNamed
                                     : CallForm::kUnnamed;
  writer.Put(static_cast<uint8_t>(form));
  if (form == CallForm::kNumber) {
    writer.Put(*number);
  } else if (form == CallForm::kNamed) {
    writer.Put(std::string_view(call.name));
  } else {
    writer.Put(call.number);
  }
}

CallName GetCallName(WireReader& reader, const CallNumbers* numbers) {
  CallName call;
  switch (static_cast<CallForm>(reader.Get<uint8_t>())) {
    case CallForm::kUnnamed:
      call.number = reader.Get<uint64_t>();
      return call;
    case CallForm::kNamed:
      call.named = true;
      call.name = reader.GetText();
      return call;
    case CallForm::kNumber:
      if (const auto* known = numbers ? numbers->At(reader.Get<uint64_t>()) : nullptr)
        return known->call;
      break;
  }
  reader.Fail();
  return call;
}

void PutReady(WireWriter& writer, const CallName& call, const ReadySet& ready_set, bool whole,
              uint64_t seen, const CallNumbers& numbers, bool direct) {
  writer.Put(seen);
  const uint64_t* const number = whole ? numbers.NumberOf(call) : nullptr;
  const bool warm = number && *numbers.At(*number)->request == *ready_set.groups()[0].request;
  const bool with_inputs = !ready_set.inputs().empty();
  const bool proposes = ready_set.proposal() != Proposal();
  writer.Put(static_cast<uint8_t>((warm ? kByNumber : 0) | (with_inputs ? kWithInputs : 0) |
                                  (ready_set.shared() ? kShared : 0) | (direct ? kDirect : 0) |
                                  (proposes ? kProposes : 0)));
  if (proposes) Put(writer, ready_set.proposal());
  if (warm) {
    writer.Put(*number);
  } else {
    Put(writer, call);
    writer.Put(static_cast<uint32_t>(ready_set.groups().size()));
    for (const ReadySet::Group& group : ready_set.groups()) {
      writer.Put(*group.request);
      Put(writer, group.members);
    }
  }
  if (!with_inputs) return;
  writer.Put(static_cast<uint32_t>(ready_set.inputs().size()));
  for (const ReadySet::Input& input : ready_set.inputs()) {
    writer.Put(input.first);
    writer.Put(input.members);
    writer.PutBlock(*input.bytes);
  }
}

namespace {

// Of members that are here, and of each once.
void GetInputs(WireReader& reader, ReadySet& ready_set) {
  const uint32_t count = reader.GetCount(3 * sizeof(uint32_t));
  std::set<uint32_t> known;
  for (uint32_t k = 0; k < count && reader.ok(); ++k) {
    ReadySet::Input input{reader.Get<uint32_t>(), reader.Get<uint32_t>(), nullptr};
    input.bytes = std::make_shared<const std::vector<std::byte>>(reader.GetBlock());
    if (input.members == 0) reader.Fail();
    for (uint32_t of = 0; of < input.members && reader.ok(); ++of) {
      const uint32_t member = input.first + of;
      if (!ready_set.Has(member) || !known.insert(member).second) reader.Fail();
    }
    if (reader.ok()) ready_set.AddInput(std::move(input));
  }
}

}  // namespace

/// Whether the root may read how many rows there are. A rank's engine sends no other call except
/// with a local error, and then the root reads no further.
static bool HasRows(const Request& request) {
  const bool splits = request.collective == Collective::kAlltoall;
  const bool counted = splits || request.collective == Collective::kAllgather;
  if (splits && request.tensors.size() != 1) return !request.local_error.empty();
  return !counted || !request.local_error.empty() ||
         std::ranges::none_of(request.tensors, [](const auto& t) { return t.shape.empty(); });
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

ReadyNews GetReady(WireReader& reader, std::span<const uint32_t> subtree,
                   const CallNumbers& numbers) {
  ReadyNews news;
  news.seen = reader.Get<uint64_t>();
  const auto form = reader.Get<uint8_t>();
  if ((form & kShared) == 0) news.ready_set.MarkPrivate();
  news.direct = (form & kDirect) != 0;
  if ((form & kProposes) != 0) news.ready_set.SetProposal(GetProposal(reader));
  if ((form & kByNumber) != 0) {
    const CallNumbers::Known* const known = numbers.At(reader.Get<uint64_t>());
    if (!known) reader.Fail();
    if (!reader.ok()) return news;
    news.call = known->call;
    (void)news.ready_set.Add(known->request, subtree);
    if ((form & kWithInputs) != 0) GetInputs(reader, news.ready_set);
    return news;
  }
  news.call = GetCallName(reader);
  const uint32_t groups = reader.GetCount(sizeof(uint32_t));
  for (uint32_t g = 0; g < groups && reader.ok(); ++g) {
    const auto request = std::make_shared<const Request>(reader.GetRequest());
    const std::vector<uint32_t> members = GetList<uint32_t>(reader);
    const bool below = std::ranges::all_of(
        members, [&](uint32_t member) { return std::ranges::binary_search(subtree, member); });
    if (!reader.ok() || !below || !HasRows(*request) || !news.ready_set.Add(request, members))
      reader.Fail();
  }
  if (news.ready_set.count() == 0) reader.Fail();
  if ((form & kWithInputs) != 0) GetInputs(reader, news.ready_set);
  return news;
}

void Put(WireWriter& writer, const std::vector<BucketMembers>& changes) {
  writer.Put(static_cast<uint32_t>(changes.size()));
  for (const BucketMembers& bucket : changes) {
    writer.Put(bucket.index);
    writer.Put(static_cast<uint32_t>(bucket.members.size()));
    for (const CallName& call : bucket.members) Put(writer, call);
  }
}

std::vector<BucketMembers> GetBuckets(WireReader& reader) {
  constexpr size_t kLeastName = sizeof(uint8_t) + sizeof(uint32_t);
  std::vector<BucketMembers> changes(reader.GetCount(2 * sizeof(uint32_t)));
  for (BucketMembers& bucket : changes) {
    bucket.index = reader.Get<uint32_t>();
    bucket.members.resize(reader.GetCount(kLeastName));
    for (CallName& call : bucket.members) call = GetCallName(reader);
    if (bucket.index >= kNamedIds) reader.Fail();
  }
  return changes;
}

namespace {

void PutFacts(WireWriter& writer, const Decision& decision) {
  writer.Put(static_cast<uint32_t>(decision.facts.size()));
  for (const CallFacts& facts : decision.facts) {
    if (decision.partial) writer.Put(facts.request);
    Put(writer, facts.rows);
    Put(writer, facts.splits);
    writer.PutBlock(facts.result);
    const bool proposed = facts.proposal != Proposal();
    writer.Put(static_cast<uint8_t>(proposed));
    if (proposed) Put(writer, facts.proposal);
  }
}

void GetFacts(WireReader& reader, Decision& decision) {
  decision.facts.resize(reader.GetCount(3 * sizeof(uint32_t)));
  for (CallFacts& facts : decision.facts) {
    if (decision.partial) facts.request = reader.GetRequest();
    facts.rows = GetList<int64_t>(reader);
    facts.splits = GetList<int64_t>(reader);
    facts.result = reader.GetBlock();
    if (reader.Get<uint8_t>() != 0) facts.proposal = GetProposal(reader);
  }
}

std::vector<std::byte> BytesOf(const WireWriter& writer) {
  return {writer.bytes().begin(), writer.bytes().end()};
}

}  // namespace

std::vector<std::byte> NoteOf(const Decision& decision) {
  const auto is_empty = [](const CallFacts& facts) {
    return facts.rows.empty() && facts.splits.empty() && facts.result.empty() &&
           facts.proposal == Proposal();
  };
  if (!decision.partial && std::ranges::all_of(decision.facts, is_empty)) return {};
  WireWriter writer;
  PutFacts(writer, decision);
  return BytesOf(writer);
}

bool TakeNote(std::span<const std::byte> note, Decision& decision) {
  if (note.empty()) {
    decision.facts.resize(decision.ids.size());
    return true;
  }
  WireReader reader(note);
  GetFacts(reader, decision);
  return reader.ok() && decision.facts.size() >= decision.ids.size();
}

std::vector<std::byte> NoteOf(const AttendanceNews& news) {
  WireWriter writer;
  const TensorKey key = news.tensor.value_or(TensorKey{});
  writer.Put(static_cast<uint8_t>(news.tensor.has_value()));
  writer.Put(key.id);
  writer.Put(key.generation);
  Put(writer, news.attendance);
  return BytesOf(writer);
}

std::optional<AttendanceNews> TakeNews(std::span<const std::byte> note) {
  WireReader reader(note);
  AttendanceNews news;
  const bool of_call = reader.Get<uint8_t>() != 0;
  const auto id = reader.Get<uint32_t>();
  const auto generation = reader.Get<uint64_t>();
  if (of_call) news.tensor = TensorKey{id, generation};
  news.attendance = GetAttendance(reader);
  return reader.ok() ? std::optional(std::move(news)) : std::nullopt;
}

void Put(WireWriter& writer, const MultiHostDecision& multi_host, const CallNumbers& numbers) {
  const Decision& decision = multi_host.decision;
  Put(writer, decision);
  writer.Put(static_cast<uint32_t>(multi_host.calls.size()));
  for (const CallName& call : multi_host.calls) Put(writer, call, &numbers);
  writer.Put(decision.grant);
  PutFacts(writer, decision);
}

MultiHostDecision GetMultiHostDecision(WireReader& reader, const CallNumbers& numbers) {
  MultiHostDecision multi_host;
  Decision& decision = multi_host.decision = GetDecision(reader);
  multi_host.calls.resize(reader.GetCount(sizeof(uint8_t) + sizeof(uint32_t)));
  for (CallName& call : multi_host.calls) call = GetCallName(reader, &numbers);
  decision.grant = reader.Get<uint64_t>();
  GetFacts(reader, decision);
  const bool runs = decision.kind == Decision::Kind::kRun;
  const bool joins = decision.kind == Decision::Kind::kJoin;
  if (decision.facts.size() != (runs ? multi_host.calls.size() : 0) ||
      (decision.partial && !(runs && multi_host.calls.size() == 1)) ||
      (joins && !multi_host.calls.empty()) ||
      (decision.grant != 0 &&
       (!runs || decision.partial || multi_host.calls.size() != 1 || !multi_host.calls[0].named)))
    reader.Fail();
  return multi_host;
}

}  // namespace horoacc
