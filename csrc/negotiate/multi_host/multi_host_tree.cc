#include "negotiate/multi_host/multi_host_tree.h"

#include <algorithm>
#include <map>

namespace horoacc {

MultiHostTree TreeOver(const std::vector<int>& host_of, uint32_t me) {
  std::vector<std::vector<uint32_t>> members;  // by the host's place in the order of the leaders
  std::map<int, uint32_t> place_of;            // by host
  for (uint32_t member = 0; member < host_of.size(); ++member) {
    const auto next = static_cast<uint32_t>(members.size());
    const auto [host, fresh] = place_of.emplace(host_of[member], next);
    if (fresh) members.emplace_back();
    members[host->second].push_back(member);
  }
  const uint32_t mine = place_of.at(host_of[me]);
  const auto parent_of = [](uint32_t place) { return (place - 1) / kFanOut; };
  MultiHostTree tree;
  tree.locals = tree.subtree = members[mine];
  tree.hosts = static_cast<uint32_t>(members.size());
  if (mine > 0) tree.parent = members[parent_of(mine)].front();
  for (uint32_t place = mine + 1; place < members.size(); ++place) {
    uint32_t child = place;  // becomes the one of this host's that leads to it
    while (child > mine && parent_of(child) != mine) child = parent_of(child);
    if (child <= mine) continue;
    const uint32_t leader = members[child].front();
    auto found = std::ranges::find(tree.children, leader, &MultiHostTree::Child::leader);
    if (found == tree.children.end()) found = tree.children.insert(found, {leader, {}});
    const std::vector<uint32_t>& below = members[place];
    found->subtree.insert(found->subtree.end(), below.begin(), below.end());
    tree.subtree.insert(tree.subtree.end(), below.begin(), below.end());
  }
  std::ranges::sort(tree.subtree);
  for (MultiHostTree::Child& child : tree.children) std::ranges::sort(child.subtree);
  return tree;
}

}  // namespace horoacc
