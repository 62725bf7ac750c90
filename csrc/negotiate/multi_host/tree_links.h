#pragma once
// The control links of a leader to those beside it in the tree of its set.
#include <span>
#include <vector>

#include "negotiate/multi_host/control_mux.h"
#include "negotiate/multi_host/multi_host_tree.h"
#include "negotiate/wire.h"

namespace horoacc {

class TreeLinks {
 public:
  /// `ranks`: global, of the set. All outlive it.
  TreeLinks(ControlMux& mux, uint32_t set, const std::vector<int>& ranks, const MultiHostTree& tree)
      : mux_(mux), set_(set), ranks_(ranks), tree_(tree) {}

  [[nodiscard]] const MultiHostTree& tree() const { return tree_; }
  [[nodiscard]] int GlobalRankOf(uint32_t member) const { return ranks_[member]; }
  Status Send(uint32_t member, std::span<const std::byte> payload) {
    return mux_.Send(set_, GlobalRankOf(member), payload);
  }
  /// Not the root's.
  Status SendUp(const WireWriter& writer) { return Send(*tree_.parent, writer.bytes()); }
  Status SendDown(std::span<const std::byte> payload) {
    for (const MultiHostTree::Child& child : tree_.children) HA_TRY(Send(child.leader, payload));
    return {};
  }

 private:
  ControlMux& mux_;
  const uint32_t set_;
  const std::vector<int>& ranks_;
  const MultiHostTree& tree_;
};

}  // namespace horoacc
