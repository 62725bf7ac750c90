#include "negotiate/decider.h"

#include <algorithm>
#include <ranges>

#include "execute/shared_memory/adasum_slices.h"
#include "execute/shared_memory/direct_slices.h"

namespace horoacc {

bool Decider::HasSlots() const {
  return control_.header().slots + 8 - control_.LeastSlotsFinished() < kExecSlots;
}

std::vector<Decision> Decider::Run(std::span<const TensorKey> keys) {
  if (const SetEnd end = control_.header().end.load(std::memory_order_acquire))
    return {ErrorDecision(keys, EndOfSet(end))};
  std::vector<TensorKey> parts[2][2];
  for (const TensorKey& key : keys)
    parts[RunsAdasum(control_, context_, key)][AllShared(control_, context_, key)].push_back(key);
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
  const bool shared = AllShared(control_, context.value(), key);
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
  if (!IsBarrier(collective)) decision.path = SelectPath(selection, settings_);
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

std::string DisplayName(const SetSegment& control, TensorKey key, Collective collective) {
  if (key.id < kNamedIds) return control.NameOf(key.id);
  const uint64_t number = (key.generation - 1) * kUnnamedIds + (key.id - kNamedIds);
  return std::string(NameOf(collective)) + ".noname." + std::to_string(number);
}

Decision ErrorDecision(std::span<const TensorKey> keys, const Error& error) {
  Decision decision;
  decision.kind = Decision::Kind::kError;
  for (const TensorKey& key : keys) {
    decision.ids.push_back(key.id);
    decision.generations.push_back(key.generation);
  }
  decision.error = error.kind;
  decision.culprit = error.culprit;
  decision.text = error.message;
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

Error CompareRows(const SetSegment& control, const SetContext& context,
                  const std::vector<int>& global_ranks, TensorKey key,
                  std::span<const uint32_t> present) {
  const auto request_of = [&](uint32_t rank) {
    return control.ReadRequest(rank, key.id, key.generation, context.memory[rank]);
  };
  const Row& lowest = control.row(present[0], key.id, key.generation);
  const auto name = [&] {
    return DisplayName(control, key, static_cast<Collective>(lowest.collective));
  };
  for (const uint32_t r : present) {
    if (control.row(r, key.id, key.generation).error == 0) continue;
    return MakeError(ErrorKind::kInvalid,
                     "tensor '" + name() + "' on rank " + std::to_string(global_ranks[r]) + ": " +
                         request_of(r).local_error,
                     global_ranks[r]);
  }
  for (const uint32_t r : present.subspan(1)) {
    if (control.row(r, key.id, key.generation).signature == lowest.signature) continue;
    return MakeError(ErrorKind::kMismatch,
                     DescribeMismatch(name(), global_ranks[present[0]], request_of(present[0]),
                                      global_ranks[r], request_of(r)),
                     global_ranks[r]);
  }
  // While somebody has joined an alltoall is not possible at all.
  if (present.size() < control.ranks()) return MakeError(ErrorKind::kOk, "");
  return CompareSplits(control, context, global_ranks, key);
}

Error CompareSplits(const SetSegment& control, const SetContext& context,
                    const std::vector<int>& global_ranks, TensorKey key) {
  const auto collective =
      static_cast<Collective>(control.row(0, key.id, key.generation).collective);
  if (collective != Collective::kAlltoall) return MakeError(ErrorKind::kOk, "");
  const auto receives = [&](uint32_t r) {
    return control.row(r, key.id, key.generation).receives > 0;
  };
  const auto members = std::views::iota(uint32_t{0}, control.ranks());
  if (std::ranges::none_of(members, receives)) return MakeError(ErrorKind::kOk, "");
  std::vector<Request> requests;
  std::vector<const Request*> shown;
  for (const uint32_t r : members)
    requests.push_back(control.ReadRequest(r, key.id, key.generation, context.memory[r]));
  for (const Request& request : requests) shown.push_back(&request);
  return CompareSplits(DisplayName(control, key, Collective::kAlltoall), global_ranks, shown);
}

Error NeedsJoined(const SetSegment& control, const std::vector<int>& global_ranks, TensorKey key) {
  const std::vector<uint32_t> present = RanksOf(control, key);
  const auto collective =
      static_cast<Collective>(control.row(present[0], key.id, key.generation).collective);
  if (collective == Collective::kAllreduce) return MakeError(ErrorKind::kOk, "");
  std::string joined;
  int first = -1;
  for (uint32_t r = 0; r < control.ranks(); ++r) {
    if (std::ranges::binary_search(present, r)) continue;
    if (first < 0) first = global_ranks[r];
    joined += (joined.empty() ? "" : ", ") + std::to_string(global_ranks[r]);
  }
  return MakeError(ErrorKind::kMismatch,
                   "tensor '" + DisplayName(control, key, collective) + "': " + NameOf(collective) +
                       " is not possible while rank(s) " + joined + " have joined; allreduce is",
                   first);
}

}  // namespace horoacc
