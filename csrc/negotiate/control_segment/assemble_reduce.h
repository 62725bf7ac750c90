#pragma once
// From the rows that the ranks published on the control segment to the pieces of a reduction.
#include <cstdint>
#include <span>
#include <vector>

#include "execute/execution.h"
#include "negotiate/control_segment/set_segment.h"

namespace horoacc {

/// The ranks that have submitted the call.
[[nodiscard]] std::vector<uint32_t> RanksOf(const SetSegment& control, TensorKey key);

/// The context of a call that ranks which have joined take no part in. kSystem if there is no room
/// for zeros.
[[nodiscard]] Result<SetContext> PartialContext(const SetSegment& control,
                                                const SetContext& context, TensorKey key);

/// True if the inputs and outputs of the tensor (or of all members of a group) of all these
/// `ranks`, which have submitted it, are shared.
[[nodiscard]] bool AllShared(const SetSegment& control, const SetContext& context, TensorKey key,
                             std::span<const uint32_t> ranks);

/// True if the tensor is to be combined by Adasum; one rank has nothing to combine.
[[nodiscard]] bool RunsAdasum(const SetSegment& control, const SetContext& context, TensorKey key);

/// Bytes of one rank's input.
[[nodiscard]] uint64_t BytesOf(const SetSegment& control, const SetContext& context, TensorKey key);

/// Appends a piece for every tensor of `key`, an allreduce that all ranks agree on. With `shared`
/// the pieces have every rank's pointers, otherwise only types and sizes.
void AppendPieces(const SetSegment& control, const SetContext& context, TensorKey key, bool shared,
                  ReduceList& list);

/// The tensors of rank `index`'s row.
[[nodiscard]] std::span<const TensorRow> TensorsOf(const Row& row, const std::byte* memory);

}  // namespace horoacc
