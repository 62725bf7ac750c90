// The algorithms by hand: a ring of three written out, what is known of the double binary tree, and
// how a vector is cut for each.
#include <bit>

#include "schedule/algorithms.h"
#include "schedule/generate/trees.h"
#include "support/check.h"

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

TEST(windows_are_short_where_stages_wait) {
  const auto cut = [](const char* name, const Topology& shape) {
    const Algorithm& algorithm = *FindAlgorithm(name).value();
    return algorithm.cut(algorithm.make({.topology = shape})->facts());
  };
  constexpr uint64_t kKiB = 1 << 10;
  const Cut stages = cut("canonical", Topology::Equal(2, 2));
  CHECK_EQ(stages.window_bytes, 512 * kKiB);
  CHECK_EQ(WindowsUnderWay(stages, stages.window_bytes), 16u);
  // As long as others where there are many ranks.
  CHECK_EQ(cut("canonical", Topology::Equal(32, 1)).window_bytes, 4096 * kKiB);
  const Cut ring = cut("ring", Topology::Equal(2, 2));
  CHECK_EQ(ring.window_bytes, 4096 * kKiB);
  CHECK_EQ(WindowsUnderWay(ring, ring.window_bytes), 2u);
  const Cut tree = cut("double_tree", Topology::Equal(16, 1));
  CHECK_EQ(tree.window_bytes, 512 * kKiB);
  CHECK_EQ(WindowsUnderWay(tree, tree.window_bytes), 2u);
}

TEST(bytes_under_way_have_bounds) {
  for (const Topology& shape : {Topology::Equal(1, 1), Topology::Equal(2, 2), Topology::Equal(3, 1),
                                Topology({3, 1, 2}), Topology::Equal(16, 8)}) {
    for (const Algorithm& algorithm : Algorithms()) {
      const Cut cut = algorithm.cut(algorithm.make({.topology = shape})->facts());
      CHECK(cut.slice_bytes <= cut.window_bytes && cut.window_bytes <= cut.under_way_bytes);
      for (const uint64_t window :
           {uint64_t{1}, uint64_t{4096}, cut.window_bytes, uint64_t{1} << 40, ~uint64_t{0}}) {
        const uint32_t windows = WindowsUnderWay(cut, window);
        CHECK(windows >= 2 && windows <= 32);
        CHECK(windows == 2 || windows * window <= cut.under_way_bytes);
      }
    }
  }
}

TEST(an_unknown_name_lists_the_known_ones) {
  const auto found = FindAlgorithm("butterfly");
  CHECK(!found.ok() && found.error().message.find("double_tree") != std::string::npos);
}
