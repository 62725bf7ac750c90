#include "negotiate/spread_messages.h"

namespace horoacc {

void Put(WireWriter& writer, const SpreadDecision& spread) {
  const Decision& decision = spread.decision;
  writer.Put(static_cast<uint8_t>(decision.kind));
  writer.Put(static_cast<uint8_t>((decision.done ? 1 : 0) | (decision.partial ? 2 : 0)));
  Put(writer, MakeError(decision.error, decision.text, decision.culprit));
  writer.Put(static_cast<int32_t>(decision.last_joined));
  writer.Put(decision.unnamed);
  writer.Put(static_cast<uint32_t>(spread.calls.size()));
  for (const CallName& call : spread.calls) Put(writer, call);
  writer.Put(static_cast<uint32_t>(decision.facts.size()));
  for (const CallFacts& facts : decision.facts) {
    if (decision.partial) writer.Put(facts.request);
    Put(writer, facts.rows);
    Put(writer, facts.splits);
  }
}

SpreadDecision GetSpreadDecision(WireReader& reader) {
  SpreadDecision spread;
  Decision& decision = spread.decision;
  decision.kind = static_cast<Decision::Kind>(reader.Get<uint8_t>());
  const auto flags = reader.Get<uint8_t>();
  decision.done = (flags & 1) != 0;
  decision.partial = (flags & 2) != 0;
  Error error = GetError(reader);
  decision.error = error.kind;
  decision.text = std::move(error.message);
  decision.culprit = error.culprit;
  decision.last_joined = reader.Get<int32_t>();
  decision.unnamed = reader.Get<uint64_t>();
  spread.calls.resize(reader.GetCount(sizeof(uint8_t) + sizeof(uint32_t)));
  for (CallName& call : spread.calls) call = GetCallName(reader);
  decision.facts.resize(reader.GetCount(2 * sizeof(uint32_t)));
  for (CallFacts& facts : decision.facts) {
    if (decision.partial) facts.request = reader.GetRequest();
    facts.rows = GetList<int64_t>(reader);
    facts.splits = GetList<int64_t>(reader);
  }
  return spread;
}

}  // namespace horoacc
