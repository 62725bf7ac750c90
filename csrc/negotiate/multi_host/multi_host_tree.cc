#include "negotiate/multi_host/multi_host_tree.h"

#include <algorithm>
#include <map>

namespace horoacc {
namespace {

std::vector<uint32_t> WithOptional(const std::optional<uint32_t>& first,
                                   const std::optional<uint32_t>& second) {
  std::vector<uint32_t> all;
  if (first) all.push_back(*first);
  if (second) all.push_back(*second);
  return all;
}

}  // namespace

HostOrder::HostOrder(const std::vector<int>& host_of) {
  std::map<int, uint32_t> places;  // by host
  for (uint32_t member = 0; member < host_of.size(); ++member) {
    const auto next = static_cast<uint32_t>(members_.size());
    const auto [host, fresh] = places.emplace(host_of[member], next);
    if (fresh) members_.emplace_back();
    members_[host->second].push_back(member);
    place_of_.push_back(host->second);
  }
}

std::vector<uint32_t> HostOrder::ChildrenOf(uint32_t place) const {
  std::vector<uint32_t> children;
  for (uint32_t child = place * kFanOut + 1; child <= (place + 1) * kFanOut; ++child) {
    if (child < hosts()) children.push_back(child);
  }
  return children;
}

MultiHostTree TreeOver(const std::vector<int>& host_of, uint32_t me) {
  const HostOrder order(host_of);
  const uint32_t mine = order.PlaceOf(me);
  const auto add = [&](std::vector<uint32_t>& to, uint32_t place, auto&& self) -> void {
    to.insert(to.end(), order.members(place).begin(), order.members(place).end());
    for (const uint32_t child : order.ChildrenOf(place)) self(to, child, self);
  };
  MultiHostTree tree;
  tree.locals = order.members(mine);
  tree.hosts = order.hosts();
  if (const auto parent = HostOrder::ParentOf(mine)) tree.parent = order.members(*parent).front();
  add(tree.subtree, mine, add);
  std::ranges::sort(tree.subtree);
  for (const uint32_t place : order.ChildrenOf(mine)) {
    MultiHostTree::Child& child = tree.children.emplace_back();
    child.leader = order.members(place).front();
    add(child.subtree, place, add);
    std::ranges::sort(child.subtree);
  }
  return tree;
}

std::vector<uint32_t> TreeNeighbours::above() const { return WithOptional(parent, grandparent); }

std::vector<uint32_t> TreeNeighbours::below() const {
  std::vector<uint32_t> all = children;
  all.insert(all.end(), grandchildren.begin(), grandchildren.end());
  return all;
}

TreeNeighbours NeighboursOf(const std::vector<int>& host_of, uint32_t me) {
  const HostOrder order(host_of);
  const uint32_t mine = order.PlaceOf(me);
  const auto leader = [&](uint32_t place) { return order.members(place).front(); };
  TreeNeighbours neighbours;
  if (leader(mine) != me) return neighbours;
  if (const auto parent = HostOrder::ParentOf(mine)) {
    neighbours.parent = leader(*parent);
    if (const auto above = HostOrder::ParentOf(*parent)) neighbours.grandparent = leader(*above);
  }
  for (const uint32_t child : order.ChildrenOf(mine)) {
    neighbours.children.push_back(leader(child));
    for (const uint32_t below : order.ChildrenOf(child))
      neighbours.grandchildren.push_back(leader(below));
  }
  return neighbours;
}

}  // namespace horoacc
