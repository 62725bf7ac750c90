#include "negotiate/multi_host/multi_host_tree.h"

#include <algorithm>
#include <map>

namespace horoacc {

MultiHostTree TreeOver(const std::vector<int>& host_of, uint32_t me) {
  const auto members = static_cast<uint32_t>(host_of.size());
  std::vector<uint32_t> leaders;
  std::map<int, uint32_t> place_of;  // by host: its leader's among the leaders
  for (uint32_t member = 0; member < members; ++member) {
    const auto place = static_cast<uint32_t>(leaders.size());
    if (place_of.emplace(host_of[member], place).second) leaders.push_back(member);
  }
  const auto parent_of = [&](uint32_t member) -> std::optional<uint32_t> {
    const uint32_t place = place_of.at(host_of[member]);
    if (leaders[place] != member) return leaders[place];
    if (place == 0) return std::nullopt;
    return leaders[(place - 1) / kFanOut];
  };
  MultiHostTree tree;
  tree.parent = parent_of(me);
  tree.subtree.push_back(me);
  for (uint32_t member = 0; member < members; ++member) {
    std::optional<uint32_t> child = member;  // becomes the one of this rank's that leads to it
    while (child && parent_of(*child) != me) child = parent_of(*child);
    if (!child) continue;
    tree.subtree.push_back(member);
    auto found = std::ranges::find(tree.children, *child, &MultiHostTree::Child::member);
    if (found == tree.children.end()) found = tree.children.insert(found, {*child, {}});
    found->subtree.push_back(member);
  }
  std::ranges::sort(tree.subtree);
  std::ranges::sort(tree.children, {}, &MultiHostTree::Child::member);
  return tree;
}

}  // namespace horoacc
