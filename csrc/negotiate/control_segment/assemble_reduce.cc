#include "negotiate/control_segment/assemble_reduce.h"

#include <algorithm>

#include "execute/kernels/zero_memory.h"

namespace horoacc {
namespace {

uint64_t CountOf(const TensorRow& tensor) {
  uint64_t count = 1;
  for (int dim = 0; dim < tensor.ndim; ++dim) count *= static_cast<uint64_t>(tensor.shape[dim]);
  return count;
}

// A rank that takes part; in the agreed fields the rows of all of them are equal.
uint32_t Witness(const SetContext& context) {
  return context.IsPresent(context.me) ? context.me : context.present[0];
}

}  // namespace

std::vector<uint32_t> RanksOf(const SetSegment& control, TensorKey key) {
  std::vector<uint32_t> ranks;
  for (uint32_t r = 0; r < control.ranks(); ++r) {
    if (control.HasSubmitted(r, key)) ranks.push_back(r);
  }
  return ranks;
}

Result<SetContext> PartialContext(const SetSegment& control, const SetContext& context,
                                  TensorKey key) {
  SetContext partial = context;
  partial.present = RanksOf(control, key);
  const uint32_t witness = Witness(partial);
  uint64_t longest = 0;
  for (const TensorRow& tensor :
       TensorsOf(control.row(witness, key.id, key.generation), context.memory[witness])) {
    longest = std::max(longest, CountOf(tensor) * SizeOf(static_cast<DType>(tensor.type)));
  }
  partial.zeros = ZeroMemory(longest);
  if (!partial.zeros) {
    return MakeError(ErrorKind::kSystem, "no address space for " + std::to_string(longest) +
                                             " bytes of zeros in the place of ranks that joined");
  }
  return partial;
}

std::span<const TensorRow> TensorsOf(const Row& row, const std::byte* memory) {
  if (row.tensors == 1) return {&row.tensor, 1};
  return {reinterpret_cast<const TensorRow*>(memory + row.extra), row.tensors};
}

bool AllShared(const SetSegment& control, const SetContext& context, TensorKey key,
               std::span<const uint32_t> ranks) {
  for (const uint32_t r : ranks) {
    for (const TensorRow& tensor :
         TensorsOf(control.row(r, key.id, key.generation), context.memory[r])) {
      if (CountOf(tensor) == 0) continue;  // nothing lies anywhere
      if (tensor.input == kPrivate || tensor.output == kPrivate) return false;
    }
  }
  return true;
}

bool RunsAdasum(const SetSegment& control, const SetContext& context, TensorKey key) {
  const Row& row = control.row(Witness(context), key.id, key.generation);
  return row.collective == static_cast<uint8_t>(Collective::kAllreduce) &&
         row.op == static_cast<uint8_t>(ReduceOp::kAdasum) && context.ranks > 1;
}

uint64_t BytesOf(const SetSegment& control, const SetContext& context, TensorKey key) {
  uint64_t bytes = 0;
  const uint32_t witness = Witness(context);
  const Row& row = control.row(witness, key.id, key.generation);
  for (const TensorRow& tensor : TensorsOf(row, context.memory[witness])) {
    bytes += CountOf(tensor) * SizeOf(static_cast<DType>(tensor.type));
  }
  return bytes;
}

void AppendPieces(const SetSegment& control, const SetContext& context, TensorKey key, bool shared,
                  ReduceList& list) {
  const uint32_t witness = Witness(context);
  const Row& mine = control.row(witness, key.id, key.generation);
  const auto own = TensorsOf(mine, context.memory[witness]);
  const size_t first = list.pieces.size();
  void** pointers = nullptr;
  if (shared) pointers = list.MakePointers(2 * context.ranks * own.size());
  for (const TensorRow& tensor : own) {
    ReducePiece& piece = list.pieces.emplace_back();
    piece.type = static_cast<DType>(tensor.type);
    piece.op = static_cast<ReduceOp>(mine.op);
    // One vector has nothing to be combined with.
    if (context.ranks == 1 && piece.op == ReduceOp::kAdasum) piece.op = ReduceOp::kSum;
    piece.scale = {mine.prescale, mine.postscale,
                   piece.op == ReduceOp::kAverage ? static_cast<double>(context.ranks) : 1.0};
    piece.count = CountOf(tensor);
    if (!shared) continue;
    piece.sources = const_cast<const void**>(pointers);
    piece.destinations = pointers + context.ranks;
    pointers += 2 * context.ranks;
  }
  if (!shared) return;
  for (size_t k = 0; k < context.present.size(); ++k) {
    const uint32_t r = context.present[k];
    const auto tensors = TensorsOf(control.row(r, key.id, key.generation), context.memory[r]);
    for (size_t t = 0; t < tensors.size(); ++t) {
      if (list.pieces[first + t].count == 0 || tensors[t].input == kPrivate) continue;
      list.pieces[first + t].sources[r] = context.memory[r] + tensors[t].input;
      list.pieces[first + t].destinations[k] = context.memory[r] + tensors[t].output;
    }
  }
  for (uint32_t r = 0; r < context.ranks; ++r) {
    if (context.IsPresent(r)) continue;
    for (size_t t = 0; t < own.size(); ++t) list.pieces[first + t].sources[r] = context.zeros.get();
  }
}

}  // namespace horoacc
