#include "negotiate/assemble_reduce.h"

namespace horoacc {
namespace {

uint64_t CountOf(const TensorRow& tensor) {
  uint64_t count = 1;
  for (int dim = 0; dim < tensor.ndim; ++dim) count *= static_cast<uint64_t>(tensor.shape[dim]);
  return count;
}

}  // namespace

std::span<const TensorRow> TensorsOf(const Row& row, const std::byte* memory) {
  if (row.tensors == 1) return {&row.tensor, 1};
  return {reinterpret_cast<const TensorRow*>(memory + row.extra), row.tensors};
}

bool AllShared(const SetBoard& board, const SetContext& context, TensorKey key) {
  for (uint32_t r = 0; r < context.ranks; ++r) {
    for (const TensorRow& tensor :
         TensorsOf(board.row(r, key.id, key.generation), context.memory[r])) {
      if (tensor.input == kPrivate || tensor.output == kPrivate) return false;
    }
  }
  return true;
}

uint64_t BytesOf(const SetBoard& board, const SetContext& context, TensorKey key) {
  uint64_t bytes = 0;
  const Row& row = board.row(context.me, key.id, key.generation);
  for (const TensorRow& tensor : TensorsOf(row, context.memory[context.me])) {
    bytes += CountOf(tensor) * SizeOf(static_cast<DType>(tensor.type));
  }
  return bytes;
}

void AppendPieces(const SetBoard& board, const SetContext& context, TensorKey key, bool shared,
                  ReduceList& list) {
  const Row& mine = board.row(context.me, key.id, key.generation);
  const auto own = TensorsOf(mine, context.memory[context.me]);
  const size_t first = list.pieces.size();
  void** pointers = nullptr;
  if (shared) {
    list.pointers.push_back(std::make_unique<void*[]>(2 * context.ranks * own.size()));
    pointers = list.pointers.back().get();
  }
  for (const TensorRow& tensor : own) {
    ReducePiece& piece = list.pieces.emplace_back();
    piece.type = static_cast<DType>(tensor.type);
    piece.op = static_cast<ReduceOp>(mine.op);
    piece.scale = {mine.prescale, mine.postscale,
                   piece.op == ReduceOp::kAverage ? static_cast<double>(context.ranks) : 1.0};
    piece.count = CountOf(tensor);
    if (!shared) continue;
    piece.sources = const_cast<const void**>(pointers);
    piece.destinations = pointers + context.ranks;
    pointers += 2 * context.ranks;
  }
  if (!shared) return;
  for (uint32_t r = 0; r < context.ranks; ++r) {
    const auto tensors = TensorsOf(board.row(r, key.id, key.generation), context.memory[r]);
    for (size_t t = 0; t < tensors.size(); ++t) {
      list.pieces[first + t].sources[r] = context.memory[r] + tensors[t].input;
      list.pieces[first + t].destinations[r] = context.memory[r] + tensors[t].output;
    }
  }
}

}  // namespace horoacc
