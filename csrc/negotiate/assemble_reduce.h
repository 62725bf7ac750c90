#pragma once
// From what the ranks published on the board to the pieces of a reduction.
#include <cstdint>
#include <span>
#include <vector>

#include "execute/execution.h"
#include "negotiate/set_board.h"

namespace horoacc {

/// True if every rank's input and output of the tensor (or of all members of a group) are shared.
[[nodiscard]] bool AllShared(const SetBoard& board, const SetContext& context, TensorKey key);

/// Bytes of one rank's input.
[[nodiscard]] uint64_t BytesOf(const SetBoard& board, const SetContext& context, TensorKey key);

/// Appends a piece for every tensor of `key`, an allreduce that all ranks agree on. With `shared`
/// the pieces have every rank's pointers, otherwise only types and sizes.
void AppendPieces(const SetBoard& board, const SetContext& context, TensorKey key, bool shared,
                  ReduceList& list);

/// The tensors of rank `index`'s row.
[[nodiscard]] std::span<const TensorRow> TensorsOf(const Row& row, const std::byte* memory);

}  // namespace horoacc
