#include "runtime/engine/assemble_exchange.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "negotiate/control_segment/assemble_reduce.h"

namespace horoacc {
namespace {

uint64_t RowBytes(const TensorRow& tensor) {
  uint64_t bytes = SizeOf(static_cast<DType>(tensor.type));
  for (int dim = 1; dim < tensor.ndim; ++dim) bytes *= static_cast<uint64_t>(tensor.shape[dim]);
  return bytes;
}

int64_t RowsOf(const TensorRow& tensor) { return tensor.ndim > 0 ? tensor.shape[0] : 1; }

// What every rank published about member `t` of the entry.
std::vector<const TensorRow*> RowsOfAll(const ProcessSet& set, const CollectiveEntry& entry,
                                        size_t t) {
  std::vector<const TensorRow*> rows(set.context.ranks);
  for (uint32_t r = 0; r < set.context.ranks; ++r) {
    rows[r] = &TensorsOf(set.control->row(r, entry.id, entry.generation), set.context.memory[r])[t];
  }
  return rows;
}

// Rows that rank `from` sends to rank `to`, and where they begin in its input.
RowRange Split(const ProcessSet& set, const CollectiveEntry& entry, const TensorRow& tensor,
               uint32_t from, uint32_t to) {
  const Row& row = set.control->row(from, entry.id, entry.generation);
  if (row.splits == 0) {
    const int64_t each = RowsOf(tensor) / set.context.ranks;
    return {each * to, each * (to + 1)};
  }
  const auto* splits = reinterpret_cast<const int64_t*>(set.context.memory[from] + row.extra);
  int64_t first = 0;
  for (uint32_t r = 0; r < to; ++r) first += splits[r];
  return {first, first + splits[to]};
}

uint64_t RowBytes(const TensorMeta& tensor) {
  uint64_t bytes = SizeOf(tensor.type);
  for (size_t dim = 1; dim < tensor.shape.size(); ++dim)
    bytes *= static_cast<uint64_t>(tensor.shape[dim]);
  return bytes;
}

}  // namespace

Status AllocateOutput(EntryTensor& tensor, uint64_t bytes) {
  if (tensor.output) return {};
  constexpr uint64_t kAlignment = 64;
  const uint64_t rounded =
      std::max<uint64_t>(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  tensor.owned.reset(std::aligned_alloc(kAlignment, rounded));
  if (!tensor.owned) {
    return MakeError(ErrorKind::kSystem,
                     "no memory for a result of " + std::to_string(bytes) + " bytes");
  }
  tensor.output = static_cast<std::byte*>(tensor.owned.get());
  return {};
}

Status PutLastRank(EntryTensor& result, int32_t last) {
  HA_TRY(AllocateOutput(result, sizeof last));
  std::memcpy(result.output, &last, sizeof last);
  return {};
}

RowRange ScatteredRows(int64_t rows, uint32_t index, uint32_t ranks) {
  const int64_t each = rows / ranks;
  const int64_t more = rows % ranks;
  const int64_t first = each * index + std::min<int64_t>(index, more);
  return {first, first + each + (index < more ? 1 : 0)};
}

namespace {

// What goes on to a GPU has a place from which it is copied there.
Status MakeRoom(CollectiveEntry& entry, size_t t, uint64_t bytes) {
  EntryTensor& tensor = entry.tensors[t];
  if (entry.device && !entry.device->has_host_memory())
    return {};  // the caller's memory will do, so far
  if (!tensor.output && entry.device) {
    HA_ASSIGN(tensor.output, entry.device->MakeOutput(t, bytes));
  }
  return AllocateOutput(tensor, bytes);
}

}  // namespace

Status PrepareOutputs(const ProcessSet& set, CollectiveEntry& entry) {
  const auto tensors = [&](uint32_t r) {
    return TensorsOf(set.control->row(r, entry.id, entry.generation), set.context.memory[r]);
  };
  return PrepareOutputs({.ranks = set.ranks,
                         .me = set.context.me,
                         .rows = [&](size_t t, uint32_t r) { return RowsOf(tensors(r)[t]); },
                         .rows_between =
                             [&](uint32_t from, uint32_t to) {
                               const RowRange part = Split(set, entry, tensors(from)[0], from, to);
                               return part.last - part.first;
                             }},
                        entry);
}

Status PrepareOutputs(const CallSizes& sizes, CollectiveEntry& entry) {
  const uint32_t me = sizes.me;
  const auto ranks = static_cast<uint32_t>(sizes.ranks.size());
  for (size_t t = 0; t < entry.tensors.size(); ++t) {
    EntryTensor& tensor = entry.tensors[t];
    tensor.result_shape = entry.request.tensors[t].shape;
    int64_t length = tensor.result_shape.empty() ? 1 : tensor.result_shape[0];
    switch (entry.request.collective) {
      case Collective::kAllgather:
        length = 0;
        entry.received_splits.clear();
        for (uint32_t r = 0; r < ranks; ++r) {
          entry.received_splits.push_back(sizes.rows(t, r));
          length += entry.received_splits.back();
        }
        break;
      case Collective::kReducescatter: {
        const RowRange mine = ScatteredRows(length, me, ranks);
        length = mine.last - mine.first;
        break;
      }
      case Collective::kReduce:
      case Collective::kGather:
        if (entry.request.root != sizes.ranks[me]) {
          tensor.result_shape = {0};
          continue;
        }
        if (entry.request.collective == Collective::kGather) length *= ranks;
        break;
      case Collective::kAlltoall:
        length = 0;
        entry.received_splits.clear();
        for (uint32_t r = 0; r < ranks; ++r) {
          entry.received_splits.push_back(sizes.rows_between(r, me));
          length += entry.received_splits.back();
        }
        break;
      default:
        break;
    }
    if (!tensor.result_shape.empty()) tensor.result_shape[0] = length;
    HA_TRY(MakeRoom(entry, t, static_cast<uint64_t>(length) * RowBytes(entry.request.tensors[t])));
  }
  return {};
}

namespace {

// Only the root takes, or only the root gives. `piece` has what every rank shows.
void ShareByRoot(const ProcessSet& set, const CollectiveEntry& entry, size_t t,
                 ExchangePiece& piece) {
  const uint32_t me = set.context.me;
  const uint32_t ranks = set.context.ranks;
  const auto root =
      static_cast<uint32_t>(std::ranges::find(set.ranks, entry.request.root) - set.ranks.begin());
  const uint64_t bytes = piece.bytes[me];
  std::byte* to = entry.tensors[t].output;
  if (entry.request.collective == Collective::kScatter) {
    for (uint32_t r = 0; r < ranks; ++r) piece.bytes[r] = r == root ? ranks * bytes : 0;
    if (me != root || to != piece.input + root * bytes)
      piece.copies.push_back({root, me * bytes, bytes, to});
    return;
  }
  // The root's own part is for itself: no rank needs to see it, and it need not pass a window.
  piece.shared[root] = me == root ? piece.input : set.context.memory[root];
  if (me != root) return;
  if (entry.request.collective == Collective::kGather) {
    for (uint32_t r = 0; r < ranks; ++r, to += bytes) piece.copies.push_back({r, 0, bytes, to});
    return;
  }
  const DType type = entry.request.tensors[t].type;
  const double divisor = entry.request.op == ReduceOp::kAverage ? ranks : 1.0;
  piece.shards.push_back({type,
                          entry.request.op,
                          {entry.request.prescale, entry.request.postscale, divisor},
                          0,
                          bytes / SizeOf(type),
                          to});
}

}  // namespace

std::vector<ExchangePiece> ExchangePieces(const ProcessSet& set, const CollectiveEntry& entry) {
  const uint32_t me = set.context.me;
  const uint32_t ranks = set.context.ranks;
  std::vector<ExchangePiece> pieces;
  for (size_t t = 0; t < entry.tensors.size(); ++t) {
    const EntryTensor& tensor = entry.tensors[t];
    const std::vector<const TensorRow*> rows = RowsOfAll(set, entry, t);
    const uint64_t row_bytes = RowBytes(*rows[me]);
    ExchangePiece piece;
    piece.input = tensor.input;
    for (uint32_t r = 0; r < ranks; ++r) {
      piece.bytes.push_back(static_cast<uint64_t>(RowsOf(*rows[r])) * row_bytes);
      piece.shared.push_back(rows[r]->input == kPrivate ? nullptr
                                                        : set.context.memory[r] + rows[r]->input);
    }
    if (ranks == 1) piece.shared[0] = tensor.input;
    switch (entry.request.collective) {
      case Collective::kAllgather: {
        std::byte* to = tensor.output;
        for (uint32_t r = 0; r < ranks; ++r) {
          piece.copies.push_back({r, 0, piece.bytes[r], to});
          to += piece.bytes[r];
        }
        break;
      }
      case Collective::kBroadcast: {
        const auto root = static_cast<uint32_t>(std::ranges::find(set.ranks, entry.request.root) -
                                                set.ranks.begin());
        for (uint32_t r = 0; r < ranks; ++r) {
          if (r != root) piece.bytes[r] = 0;
        }
        if (me != root || tensor.output != tensor.input) {
          piece.copies.push_back({root, 0, piece.bytes[root], tensor.output});
        }
        break;
      }
      case Collective::kAlltoall: {
        std::byte* to = tensor.output;
        for (uint32_t r = 0; r < ranks; ++r) {
          const RowRange part = Split(set, entry, *rows[r], r, me);
          const uint64_t bytes = static_cast<uint64_t>(part.last - part.first) * row_bytes;
          piece.copies.push_back({r, static_cast<uint64_t>(part.first) * row_bytes, bytes, to});
          to += bytes;
        }
        break;
      }
      case Collective::kReducescatter: {
        const DType type = entry.request.tensors[t].type;
        const RowRange mine = ScatteredRows(RowsOf(*rows[me]), me, ranks);
        const uint64_t row_elements = row_bytes / SizeOf(type);
        const double divisor = entry.request.op == ReduceOp::kAverage ? ranks : 1.0;
        piece.shards.push_back({type,
                                entry.request.op,
                                {entry.request.prescale, entry.request.postscale, divisor},
                                static_cast<uint64_t>(mine.first) * row_elements,
                                static_cast<uint64_t>(mine.last) * row_elements,
                                tensor.output});
        break;
      }
      case Collective::kReduce:
      case Collective::kGather:
      case Collective::kScatter:
        ShareByRoot(set, entry, t, piece);
        break;
      default:
        break;
    }
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

ExchangePiece FlatAllreduce(const ReducePiece& piece, const SetContext& context) {
  ExchangePiece flat;
  flat.bytes.assign(context.ranks, piece.bytes());
  flat.input = static_cast<const std::byte*>(piece.input);
  flat.shared.assign(context.ranks, context.ranks == 1 ? flat.input : nullptr);
  flat.shards.push_back(
      {piece.type, piece.op, piece.scale, 0, piece.count, static_cast<std::byte*>(piece.output)});
  return flat;
}

}  // namespace horoacc
