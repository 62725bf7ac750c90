#pragma once
// The tree over which ranks that share no memory negotiate: first inside each host, then over
// hosts.
#include <cstdint>
#include <optional>
#include <vector>

namespace horoacc {

inline constexpr uint32_t kFanOut = 4;  ///< children of a rank in a tree

/// One rank's place in it. Ranks are members of the set, by index; member 0 is the root.
struct MultiHostTree {
  struct Child {
    uint32_t member = 0;
    std::vector<uint32_t> subtree;  ///< it and all below it, ascending
  };
  std::optional<uint32_t> parent;  ///< none: the root
  std::vector<Child> children;     ///< ascending
  std::vector<uint32_t> subtree;   ///< this rank and all below it, ascending
};

/// The lowest member of a host is its leader and the parent of its other members; the leaders, in
/// the order of their numbers, form a tree of fan-out kFanOut. `host_of`: by member. So a rank has
/// its host's members and at most kFanOut leaders as children.
[[nodiscard]] MultiHostTree TreeOver(const std::vector<int>& host_of, uint32_t me);

}  // namespace horoacc
