#include "negotiate/decider.h"

#include "execute/direct_slices.h"
#include "schedule/select.h"

namespace horoacc {

bool Decider::HasSlots() const {
  return board_.header().slots + 4 - board_.LeastSlotsFinished() < kExecSlots;
}

std::vector<Decision> Decider::Run(std::span<const TensorKey> keys) {
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

std::string DisplayName(const SetBoard& board, const SetContext& context, TensorKey key) {
  if (key.id < kNamedIds) return board.NameOf(key.id);
  const Row& row = board.row(context.me, key.id, key.generation);
  const uint64_t number = (key.generation - 1) * kUnnamedIds + (key.id - kNamedIds);
  return std::string(NameOf(static_cast<Collective>(row.collective))) + ".noname." +
         std::to_string(number);
}

Disagreement CompareRows(const SetBoard& board, const SetContext& context,
                         const std::vector<int>& global_ranks, TensorKey key) {
  const uint64_t signature = board.row(0, key.id, key.generation).signature;
  for (uint32_t r = 0; r < context.ranks; ++r) {
    const Row& row = board.row(r, key.id, key.generation);
    if (row.error == 0) continue;
    const Request request = board.ReadRequest(r, key.id, key.generation, context.memory[r]);
    return {ErrorKind::kInvalid, global_ranks[r],
            "tensor '" + DisplayName(board, context, key) + "' on rank " +
                std::to_string(global_ranks[r]) + ": " + request.local_error};
  }
  for (uint32_t r = 1; r < context.ranks; ++r) {
    if (board.row(r, key.id, key.generation).signature == signature) continue;
    const Request a = board.ReadRequest(0, key.id, key.generation, context.memory[0]);
    const Request b = board.ReadRequest(r, key.id, key.generation, context.memory[r]);
    return {
        ErrorKind::kMismatch, global_ranks[r],
        DescribeMismatch(DisplayName(board, context, key), global_ranks[0], a, global_ranks[r], b)};
  }
  return {};
}

}  // namespace horoacc
