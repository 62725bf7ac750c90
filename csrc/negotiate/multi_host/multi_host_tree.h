#pragma once
// The tree over which the leaders of a set's hosts negotiate.
#include <cstdint>
#include <optional>
#include <vector>

namespace horoacc {

inline constexpr uint32_t kFanOut = 4;  ///< children of a leader in the tree

/// The place of one host in it. Ranks are members of the set, by index. The lowest member of a host
/// is its leader; the leaders, in the order of their numbers, form a tree of fan-out kFanOut with
/// member 0, the set's lowest rank, as its root.
struct MultiHostTree {
  struct Child {
    uint32_t leader = 0;
    std::vector<uint32_t> subtree;  ///< the members of its host and of all below it, ascending
  };
  std::vector<uint32_t> locals;    ///< the members on this host, ascending: the first is its leader
  std::optional<uint32_t> parent;  ///< a leader; none: this host has the root
  std::vector<Child> children;     ///< ascending
  std::vector<uint32_t> subtree;   ///< the members of this host and of all below it, ascending
  uint32_t hosts = 0;              ///< of the set
};

/// `host_of`: by member; `me`: a member on this host.
[[nodiscard]] MultiHostTree TreeOver(const std::vector<int>& host_of, uint32_t me);

}  // namespace horoacc
