#pragma once
// Small allreduces between hosts are eager and need no messages of their own: the inputs travel
// with the announcements, the root reduces them, and the result comes down with the decision.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "negotiate/multi_host/ready_set.h"

namespace horoacc {

/// Bytes of all ranks that may be on their way at a time, about: so the root's part stays small,
/// and a step's many gradients go by schedules, which share the work.
inline constexpr uint64_t kMaxEagerBytes = 64 << 10;

/// Bytes of one rank's input if the call may be eager; otherwise 0.
[[nodiscard]] uint64_t EagerBytes(const Request& request, size_t ranks);

/// Whether a tensor has 16-bit floats.
[[nodiscard]] bool HasHalves(const Request& request);

/// A call's tensors in a row, each at a multiple of 16 bytes. `tensors`: where they lie.
[[nodiscard]] std::vector<std::byte> PackTensors(const Request& request,
                                                 std::span<const std::byte* const> tensors);
void UnpackTensors(const Request& request, std::span<const std::byte> packed,
                   std::span<std::byte* const> tensors);

/// The packed result, of the bits of any other path; nothing if not all of `ranks` have given their
/// inputs, of the right length.
[[nodiscard]] std::vector<std::byte> ReduceEager(const ReadySet& ready_set, size_t ranks);

}  // namespace horoacc
