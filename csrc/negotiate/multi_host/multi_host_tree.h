#pragma once
// The tree over which the leaders of a set's hosts negotiate.
#include <cstdint>
#include <optional>
#include <vector>

namespace horoacc {

inline constexpr uint32_t kFanOut = 4;  ///< children of a leader in the tree
/// Hosts of which all others know where they listen: if the root leaves the next one takes its
/// place.
inline constexpr uint32_t kRootsKnown = kFanOut + 1;

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

/// The members that lead the hosts next to one in the tree; of a job, those with which its leader
/// has control links from the start, however many hosts there are.
struct TreeNeighbours {
  std::optional<uint32_t> parent, grandparent;
  std::vector<uint32_t> children, grandchildren;
  [[nodiscard]] std::vector<uint32_t> above() const;
  [[nodiscard]] std::vector<uint32_t> below() const;
};
/// Empty unless `me` is the lowest member of its host.
[[nodiscard]] TreeNeighbours NeighboursOf(const std::vector<int>& host_of, uint32_t me);

/// Hosts as places in such a tree, in the order of their lowest ranks.
class HostOrder {
 public:
  explicit HostOrder(const std::vector<int>& host_of);
  [[nodiscard]] uint32_t hosts() const { return static_cast<uint32_t>(members_.size()); }
  [[nodiscard]] const std::vector<uint32_t>& members(uint32_t place) const {
    return members_[place];
  }
  [[nodiscard]] uint32_t PlaceOf(uint32_t member) const { return place_of_[member]; }
  [[nodiscard]] static std::optional<uint32_t> ParentOf(uint32_t place) {
    return place == 0 ? std::nullopt : std::optional((place - 1) / kFanOut);
  }
  [[nodiscard]] std::vector<uint32_t> ChildrenOf(uint32_t place) const;

 private:
  std::vector<std::vector<uint32_t>> members_;  ///< by place
  std::vector<uint32_t> place_of_;              ///< by member
};

}  // namespace horoacc
