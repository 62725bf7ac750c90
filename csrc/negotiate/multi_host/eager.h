#pragma once
// Small allreduces between hosts are eager and need no messages of their own: the inputs travel
// with the news of the call, or each host's sum of them, the root reduces these, and the result
// comes down with the decision.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/settings.h"
#include "negotiate/multi_host/ready_set.h"

namespace horoacc {

/// Bytes of a host that may be on their way at a time: so the root's part stays small, and a step's
/// many gradients go by schedules, which share the work.
inline constexpr uint64_t kMostEagerBytes = 64 << 10;

/// Which calls of a set are eager, and what its hosts send.
class EagerRule {
 public:
  /// `sums`: a host's ranks are one node of the tree over all ranks, so that their sum is enough.
  EagerRule(std::span<const uint32_t> ranks_per_host, bool sums, const Settings& settings);
  /// Bytes of a host's sum, or of one rank's input, if the call may be eager; otherwise 0.
  [[nodiscard]] uint64_t BytesOf(const Request& request) const;
  [[nodiscard]] bool sums() const { return sums_; }
  /// The inputs of members from `first` on, added up. `inputs`: where their tensors lie.
  [[nodiscard]] ReadySet::Input Sum(const Request& request, uint32_t first,
                                    std::span<const std::vector<const std::byte*>> inputs) const;

 private:
  size_t ranks_;
  bool sums_;
  uint64_t most_bytes_;  ///< of a call: what a host may send, for each of its parts
  bool none_;            ///< an algorithm is forced
  bool halves_;          ///< 16-bit floats, too; not where schedules round sums on the way
};

/// The tensors of a result, in a row, to where they belong.
void UnpackTensors(const Request& request, std::span<const std::byte> packed,
                   std::span<std::byte* const> tensors);

/// The packed result, of the bits of any other path; nothing if not all of `ranks` have given their
/// inputs, of the right length.
[[nodiscard]] std::vector<std::byte> ReduceEager(const ReadySet& ready_set, size_t ranks);

}  // namespace horoacc
