#pragma once
// From what the ranks published to the copies of an exchange, and the shapes of its results.
#include <functional>
#include <vector>

#include "execute/shared_memory/exchange.h"
#include "runtime/sets/process_set.h"

namespace horoacc {

/// Sets result shapes and received splits of an entry, and allocates outputs that the caller left
/// to the engine. Not for an allreduce, whose results look as its inputs do and have their places.
/// kSystem if memory runs out.
Status PrepareOutputs(const ProcessSet& set, CollectiveEntry& entry);

/// What the sizes of results depend on: the ranks of the set, and what they have told of a call.
struct CallSizes {
  const std::vector<int>& ranks;                                    ///< global
  uint32_t me = 0;                                                  ///< by index, as below
  std::function<int64_t(size_t t, uint32_t rank)> rows;             ///< of an allgather's input
  std::function<int64_t(uint32_t from, uint32_t to)> rows_between;  ///< of an alltoall
};
Status PrepareOutputs(const CallSizes& sizes, CollectiveEntry& entry);

/// Allocates the memory of a result, unless the caller has given it. kSystem if memory runs out.
Status AllocateOutput(EntryTensor& tensor, uint64_t bytes);

/// The result of a join: the global rank that joined last.
Status PutLastRank(EntryTensor& result, int32_t last);

/// The pieces of an all-gather, broadcast, all-to-all or reduce-scatter.
[[nodiscard]] std::vector<ExchangePiece> ExchangePieces(const ProcessSet& set,
                                                        const CollectiveEntry& entry);

/// The pieces of a flat allreduce of private memory.
[[nodiscard]] ExchangePiece FlatAllreduce(const ReducePiece& piece, const SetContext& context);

/// Rows of a reduce-scatter's first dimension that rank `index` of `ranks` gets: the first
/// `rows % ranks` ranks get one more (Horovod's rule).
struct RowRange {
  int64_t first;
  int64_t last;
};
[[nodiscard]] RowRange ScatteredRows(int64_t rows, uint32_t index, uint32_t ranks);

}  // namespace horoacc
