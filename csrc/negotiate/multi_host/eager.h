#pragma once
// Small allreduces between hosts are eager and need no messages of their own: the inputs travel
// with the news of the call, the root reduces them, and the result comes down with the decision.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/settings.h"
#include "negotiate/multi_host/ready_set.h"

namespace horoacc {

/// Bytes of all ranks that may be on their way at a time, about: so the root's part stays small,
/// and a step's many gradients go by schedules, which share the work.
inline constexpr uint64_t kMaxEagerBytes = 64 << 10;

/// Which calls of a set of `ranks` ranks are eager.
class EagerRule {
 public:
  EagerRule(size_t ranks, const Settings& settings);
  /// Bytes of one rank's input if the call may be eager; otherwise 0.
  [[nodiscard]] uint64_t BytesOf(const Request& request) const;
  /// Bytes of one rank's inputs that may be on their way at a time.
  [[nodiscard]] uint64_t most_bytes() const { return kMaxEagerBytes / ranks_; }

 private:
  size_t ranks_;
  bool none_;    ///< an algorithm is forced
  bool halves_;  ///< 16-bit floats, too; not where schedules round sums on the way
};

/// A call's tensors in a row, each at a multiple of 16 bytes. `tensors`: where they lie.
[[nodiscard]] std::vector<std::byte> PackTensors(const Request& request,
                                                 std::span<const std::byte* const> tensors);
void UnpackTensors(const Request& request, std::span<const std::byte> packed,
                   std::span<std::byte* const> tensors);

/// The packed result, of the bits of any other path; nothing if not all of `ranks` have given their
/// inputs, of the right length.
[[nodiscard]] std::vector<std::byte> ReduceEager(const ReadySet& ready_set, size_t ranks);

}  // namespace horoacc
