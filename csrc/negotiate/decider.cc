#include "negotiate/decider.h"

#include "execute/direct_slices.h"
#include "schedule/select.h"

namespace horoacc {

bool Decider::HasSlots() const {
  return board_.header().slots + 4 - board_.LeastSlotsFinished() < kExecSlots;
}

std::vector<Decision> Decider::Run(std::span<const TensorKey> keys) {
  if (const int32_t gone = board_.header().gone.load(std::memory_order_acquire); gone != 0)
    return {ErrorDecision(keys, EndOfSet(gone - 1))};
  std::vector<TensorKey> shared;
  std::vector<TensorKey> apart;
  for (const TensorKey& key : keys)
    (AllShared(board_, context_, key) ? shared : apart).push_back(key);
  std::vector<Decision> decisions;
  if (!shared.empty()) decisions.push_back(RunPart(shared, true));
  if (!apart.empty()) decisions.push_back(RunPart(apart, false));
  return decisions;
}

Decision Decider::RunPart(const std::vector<TensorKey>& keys, bool shared) {
  const Row& row = board_.row(context_.me, keys[0].id, keys[0].generation);
  const auto collective = static_cast<Collective>(row.collective);
  SelectionKey selection{collective == Collective::kAllreduce, shared, 0, context_.ranks};
  Decision decision;
  for (const TensorKey& key : keys) {
    selection.bytes += BytesOf(board_, context_, key);
    decision.ids.push_back(key.id);
  }
  const Path path = SelectPath(selection, settings_);
  if (path == Path::kLastArriver) {
    ReduceList list;
    for (const TensorKey& key : keys) AppendPieces(board_, context_, key, true, list);
    DirectSlices::ReduceAll(list, context_.ranks);
  }
  decision.shared = shared;
  decision.done =
      path == Path::kNone || path == Path::kLastArriver || collective == Collective::kBarrier;
  if (!decision.done) {
    decision.slot = board_.header().slots++;
    board_.slot(decision.slot).Reset(context_.ranks);
  }
  return decision;
}

std::string DisplayName(const SetBoard& board, TensorKey key, Collective collective) {
  if (key.id < kNamedIds) return board.NameOf(key.id);
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

Error EndOfSet(int gone) {
  if (gone == kRemoved) return MakeError(ErrorKind::kAborted, "the process set was removed");
  return MakeError(ErrorKind::kAborted, "rank " + std::to_string(gone) + " has shut down", gone);
}

Error CompareRows(const SetBoard& board, const SetContext& context,
                  const std::vector<int>& global_ranks, TensorKey key) {
  const auto request_of = [&](uint32_t rank) {
    return board.ReadRequest(rank, key.id, key.generation, context.memory[rank]);
  };
  const Row& lowest = board.row(0, key.id, key.generation);
  const auto name = [&] {
    return DisplayName(board, key, static_cast<Collective>(lowest.collective));
  };
  for (uint32_t r = 0; r < context.ranks; ++r) {
    if (board.row(r, key.id, key.generation).error == 0) continue;
    return MakeError(ErrorKind::kInvalid,
                     "tensor '" + name() + "' on rank " + std::to_string(global_ranks[r]) + ": " +
                         request_of(r).local_error,
                     global_ranks[r]);
  }
  for (uint32_t r = 1; r < context.ranks; ++r) {
    if (board.row(r, key.id, key.generation).signature == lowest.signature) continue;
    return MakeError(
        ErrorKind::kMismatch,
        DescribeMismatch(name(), global_ranks[0], request_of(0), global_ranks[r], request_of(r)),
        global_ranks[r]);
  }
  return MakeError(ErrorKind::kOk, "");
}

}  // namespace horoacc
