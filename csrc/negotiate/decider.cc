#include "negotiate/decider.h"

#include <algorithm>

#include "execute/shared_memory/adasum_slices.h"
#include "execute/shared_memory/direct_slices.h"
#include "negotiate/disagreement.h"

namespace horoacc {

std::vector<Decision> Decider::Run(std::span<const TensorKey> keys) {
  if (const SetEnd end = control_.header().end.load(std::memory_order_acquire))
    return {ErrorDecision(keys, EndOfSet(end))};
  std::vector<TensorKey> parts[2][2];
  for (const TensorKey& key : keys)
    parts[RunsAdasum(control_, context_, key)][AllShared(control_, context_, key, context_.present)]
        .push_back(key);
  std::vector<Decision> decisions;
  for (const bool adasum : {false, true}) {
    for (const bool shared : {true, false}) {
      const std::vector<TensorKey>& part = parts[adasum][shared];
      if (!part.empty()) decisions.push_back(RunPart(context_, part, shared));
    }
  }
  return decisions;
}

Decision Decider::RunPartial(TensorKey key) {
  if (const SetEnd end = control_.header().end.load(std::memory_order_acquire))
    return ErrorDecision({&key, 1}, EndOfSet(end));
  const Result<SetContext> context = PartialContext(control_, context_, key);
  if (!context.ok()) return ErrorDecision({&key, 1}, context.error());
  const bool shared = AllShared(control_, context.value(), key, context.value().present);
  Decision decision = RunPart(context.value(), {&key, 1}, shared);
  decision.partial = true;
  return decision;
}

Decision Decider::RunPart(const SetContext& context, std::span<const TensorKey> keys, bool shared) {
  if (context.faults && context.faults->Has(FaultSite::kDecide)) [[unlikely]]
    (void)context.faults->Strike();
  const Row& row = control_.row(context.present[0], keys[0].id, keys[0].generation);
  const auto collective = static_cast<Collective>(row.collective);
  const bool adasum = RunsAdasum(control_, context, keys[0]);
  SelectionKey selection{collective == Collective::kAllreduce, adasum, shared, 0, context.ranks};
  Decision decision;
  for (const TensorKey& key : keys) {
    selection.bytes += BytesOf(control_, context, key);
    decision.ids.push_back(key.id);
  }
  if (!IsBarrier(collective)) decision.path = SelectPath(selection, tuned_.last_arriver_bytes());
  if (decision.path == Path::kLastArriver) {
    ReduceList list;
    for (const TensorKey& key : keys) AppendPieces(control_, context, key, true, list);
    adasum ? AdasumSlices::CombineAll(context, list) : DirectSlices::ReduceAll(context, list);
  }
  decision.shared = shared;
  if (!decision.done()) {
    decision.slot = control_.header().slots++;
    control_.slot(decision.slot).Reset(context.ranks);
  }
  return decision;
}

std::string Decider::DisplayName(TensorKey key, Collective collective, uint64_t number) const {
  if (key.id < kNamedIds) return control_.NameOf(key.id);
  return NameOfUnnamed(collective, number);
}

// Requests are read from the rows only if the rows alone do not show that they fit together.
Error Decider::Refusal(TensorKey key, std::span<const uint32_t> present) const {
  if (const SetEnd end = control_.header().end.load(std::memory_order_acquire))
    return EndOfSet(end);
  const Row& lowest = control_.row(present[0], key.id, key.generation);
  const auto collective = static_cast<Collective>(lowest.collective);
  const bool possible = present.size() == control_.ranks() || collective == Collective::kAllreduce;
  const bool fit =
      possible && std::ranges::all_of(present, [&](uint32_t r) {
        const Row& row = control_.row(r, key.id, key.generation);
        return row.error == 0 && row.receives == 0 && row.signature == lowest.signature;
      });
  if (fit) return MakeError(ErrorKind::kOk, "");
  std::vector<Request> requests(control_.ranks());
  std::vector<const Request*> by_member(control_.ranks());
  for (const uint32_t r : present) {
    requests[r] = control_.ReadRequest(r, key.id, key.generation, context_.memory[r]);
    by_member[r] = &requests[r];
  }
  return FindDisagreement(DisplayName(key, collective, lowest.number), global_ranks_, by_member);
}

ReadyItem Decider::ItemOf(TensorKey key) const {
  const Row& lowest = control_.row(0, key.id, key.generation);
  const bool fusable = key.id < kNamedIds && lowest.recurs == Recurs::kNo &&
                       lowest.collective == static_cast<uint8_t>(Collective::kAllreduce);
  return {key.id, lowest.sequence, lowest.sync_round, BytesOf(control_, context_, key), fusable};
}

Decision ErrorDecision(std::span<const TensorKey> keys, const Error& error) {
  Decision decision = Decision::Failure(error);
  for (const TensorKey& key : keys) {
    decision.ids.push_back(key.id);
    decision.generations.push_back(key.generation);
  }
  return decision;
}

Error EndOfSet(SetEnd end) {
  if (end.removed()) return MakeError(ErrorKind::kAborted, "the process set was removed");
  const std::string rank = "rank " + std::to_string(end.rank());
  return MakeError(ErrorKind::kAborted,
                   end.gave_up() ? "the group has ended: " + rank + " gave up waiting in it"
                                 : rank + " has shut down",
                   end.rank());
}

}  // namespace horoacc
