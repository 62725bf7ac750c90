// The algorithms by hand: a ring of three written out, and what is known of the double binary tree.
#include <bit>

#include "check.h"
#include "schedule/algorithms.h"
#include "schedule/generate/binary_tree.h"

using namespace horoacc;
using namespace horoacc::schedule;

namespace {

std::string Text(const Step& step) {
  constexpr const char* kOps[] = {
      "send",          "copy", "recv", "recv-reduce", "recv-reduce-send", "recv-reduce-copy-send",
      "recv-copy-send"};
  std::string text = kOps[static_cast<int>(step.op)];
  text += " " + std::to_string(step.src == Buffer::kNone ? step.dst_chunk : step.src_chunk);
  for (uint32_t k = 0; k < step.receives; ++k) text += " from " + std::to_string(step.peer[k]);
  for (uint32_t k = 0; k < step.sends; ++k) {
    text += " to " + std::to_string(step.peer[step.receives + k]);
  }
  return text;
}

std::vector<std::string> Steps(const char* name, const Plan& plan, uint32_t rank, uint32_t lane) {
  const auto found = FindAlgorithm(name);
  CHECK(found.ok());
  const auto schedule = found.value()->make(plan);
  std::vector<std::string> texts;
  for (uint32_t k = 0; k < schedule->steps(rank, lane); ++k) {
    texts.push_back(Text(schedule->step(rank, lane, k)));
  }
  return texts;
}

using Lines = std::vector<std::string>;

}  // namespace

TEST(ring_of_three) {
  const Plan plan{.topology = Topology::Equal(3, 1)};
  CHECK(Steps("ring", plan, 0, 0) == Lines{"send 2 to 1", "recv-reduce-send 1 from 2 to 1",
                                           "recv-reduce-copy-send 0 from 2 to 1",
                                           "recv-copy-send 2 from 2 to 1", "recv 1 from 2"});
  CHECK(Steps("ring_reduce_scatter", plan, 1, 0) ==
        Lines{"send 0 to 2", "recv-reduce-send 2 from 0 to 2", "recv-reduce 1 from 0"});
  CHECK(Steps("ring_all_gather", plan, 2, 0) ==
        Lines{"copy 2", "send 2 to 0", "recv-copy-send 1 from 1 to 0", "recv 0 from 1"});
}

TEST(double_tree_of_five) {
  const Plan plan{.topology = Topology::Equal(5, 1)};
  CHECK(Steps("double_tree", plan, 0, 0) == Lines{"recv-reduce 0 from 4"});
  CHECK(Steps("double_tree", plan, 0, 1) == Lines{"send 0 to 4"});
  CHECK(Steps("double_tree", plan, 2, 0) == Lines{"recv-reduce-send 0 from 1 from 3 to 4"});
  CHECK(Steps("double_tree", plan, 4, 0) == Lines{"recv-reduce-send 0 from 2 to 0"});
  CHECK(Steps("double_tree", plan, 3, 1) == Lines{"recv 0 from 2"});
  // The second tree is the first, one further.
  CHECK(Steps("double_tree", plan, 3, 2) == Lines{"recv-reduce-send 1 from 2 from 4 to 0"});
}

TEST(cpu_reduce_on_two_by_two) {
  const Plan plan{.topology = Topology::Equal(2, 2)};
  CHECK(Steps("cpu_reduce", plan, 2, 0) == Lines{"send 2 to 3"});
  CHECK(Steps("cpu_reduce", plan, 2, 1) == Lines{"recv-reduce 0"});
  CHECK(Steps("cpu_reduce", plan, 2, 2) ==
        Lines{"send 0 to 0", "recv-reduce-copy-send 1 from 0 to 0", "recv 0 from 0"});
  CHECK(Steps("cpu_reduce", plan, 2, 3) == Lines{"send 0", "recv 2 from 3"});
}

TEST(double_binary_tree_of_any_size) {
  for (const uint32_t first : {1u, 3072u, 24575u}) {
    const uint32_t last = first == 1 ? 257 : first + 1;
    for (uint32_t n = first; n <= last; ++n) {
      const TreeLabels trees[2] = {{n, 0, true}, {n, 1, true}};
      uint32_t inside_both = 0;
      for (uint32_t member = 0; member < n; ++member) {
        uint32_t inside = 0, children = 0;
        for (const TreeLabels& labels : trees) {
          const uint32_t label = labels.label(member);
          CHECK_EQ(labels.member(label), member);
          const TreeNode node = BinaryTreeNode(n, label);
          inside += node.children > 0 ? 1 : 0;
          children += node.children;
          for (uint32_t k = 0; k < node.children; ++k) {
            CHECK_EQ(BinaryTreeNode(n, node.child[k]).parent, label);
          }
          uint32_t depth = 0;
          for (uint32_t at = label; at != 0; at = BinaryTreeNode(n, at).parent) ++depth;
          CHECK(depth <= static_cast<uint32_t>(std::bit_width(n - 1)));
        }
        CHECK(children <= 2);
        if (inside == 2) ++inside_both;
      }
      CHECK_EQ(inside_both, n % 2 == 1 && n > 1 ? 1 : 0);
    }
  }
}

TEST(an_unknown_name_lists_the_known_ones) {
  const auto found = FindAlgorithm("butterfly");
  CHECK(!found.ok() && found.error().message.find("double_tree") != std::string::npos);
}
