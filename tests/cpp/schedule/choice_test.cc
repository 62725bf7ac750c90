// Which algorithm is chosen: by the model, by what was measured, and by what is forced.
#include "schedule/select.h"
#include "support/check.h"

namespace horoacc {
namespace {

using schedule::AlgorithmChoice;
using schedule::Goal;
using schedule::MeasuredTable;
using schedule::Topology;

constexpr uint64_t kSmall = 1 << 10;
constexpr uint64_t kLarge = 256 << 20;

std::shared_ptr<const MeasuredTable> Table(const std::string& text) {
  auto table = MeasuredTable::Parse(text);
  CHECK(table.ok());
  return std::make_shared<const MeasuredTable>(std::move(table).value());
}

std::string Chosen(const Topology& topology, Goal goal, uint64_t bytes,
                   const std::string& table = "", const Settings& settings = {}) {
  AlgorithmChoice choice(topology, Table(table));
  return std::string(SelectAlgorithm({goal, bytes}, settings, choice));
}

double Expected(const Topology& topology, std::string_view name, uint64_t bytes) {
  AlgorithmChoice choice(topology, Table(""));
  return choice.Expected(*schedule::FindAlgorithm(name).value(), bytes);
}

bool Near(double a, double b) { return a > 0.999 * b && a < 1.001 * b; }

TEST(the_model_counts_rounds_messages_and_the_fullest_interface) {
  // Eight hosts of one rank, ring: 14 rounds and messages, 2 * 7/8 of the bytes.
  const Topology eight = Topology::Equal(8, 1);
  CHECK(Near(Expected(eight, "ring", 1 << 30), 14 * 30e-6 + 14 * 5e-6 + 1.75 * (1 << 30) / 1.25e9));
  // Two hosts of two: across go S of `hierarchical`, and 1.5 S of the ring.
  const Topology two = Topology::Equal(2, 2);
  CHECK(Near(Expected(two, "hierarchical", 1 << 30), 4 * 30e-6 + 4 * 5e-6 + (1 << 30) / 1.25e9));
  CHECK(Near(Expected(two, "ring", 1 << 30), 6 * 30e-6 + 6 * 5e-6 + 1.5 * (1 << 30) / 1.25e9));
  // The root of two children sends twice, the last of a chain once.
  CHECK(Near(Expected(eight, "tree_broadcast", 1 << 30),
             3 * 30e-6 + 2 * 5e-6 + 2.0 * (1 << 30) / 1.25e9));
  CHECK(Near(Expected(eight, "chain_broadcast", 1 << 30), 7 * 30e-6 + 5e-6 + (1 << 30) / 1.25e9));
}

TEST(few_rounds_for_small_vectors_and_few_bytes_for_large_ones) {
  const Topology many = Topology::Equal(16, 1);
  CHECK_EQ(Chosen(many, Goal::kBroadcast, kSmall), "tree_broadcast");
  CHECK_EQ(Chosen(many, Goal::kBroadcast, kLarge), "chain_broadcast");
  const Topology shared = Topology::Equal(4, 8);
  CHECK_EQ(Chosen(shared, Goal::kAllToAll, kSmall), "rail_all_to_all");
  Settings fast;
  fast.reduction = "fast";
  CHECK_EQ(Chosen(many, Goal::kReduce, kSmall, "", fast), "tree_reduce");
  CHECK_EQ(Chosen(many, Goal::kReduceScatter, kSmall, "", fast), "log_reduce_scatter");
  // Sums in the order of ranks cost nothing on hosts of 2^k ranks, and bytes on others.
  CHECK_EQ(Chosen(shared, Goal::kAllreduce, kLarge, "", fast), "canonical");
  CHECK_EQ(Chosen(Topology::Equal(4, 3), Goal::kAllreduce, kLarge, "", fast), "cpu_reduce");
}

TEST(sums_are_in_the_order_of_ranks_where_that_is_cheap) {
  Settings always;
  always.reduction = "canonical";
  Settings fast;
  fast.reduction = "fast";
  for (const Topology& cheap :
       {Topology::Equal(2, 2), Topology::Equal(4, 1), Topology::Equal(2, 8), Topology({2, 1})}) {
    for (const uint64_t bytes : {kSmall, kLarge}) {
      CHECK_EQ(Chosen(cheap, Goal::kAllreduce, bytes), "canonical");
      CHECK_EQ(Chosen(cheap, Goal::kReduceScatter, bytes), "canonical_reduce_scatter");
    }
  }
  // What does not fit the tree sends more, and there the size decides.
  for (const Topology& dear : {Topology::Equal(2, 3), Topology::Equal(2, 6), Topology({3, 2, 4}),
                               Topology::Equal(3, 2), Topology::Equal(4096, 1)}) {
    CHECK(Chosen(dear, Goal::kAllreduce, kLarge) != "canonical");
    CHECK_EQ(Chosen(dear, Goal::kAllreduce, kLarge),
             Chosen(dear, Goal::kAllreduce, kLarge, "", fast));
    CHECK_EQ(Chosen(dear, Goal::kAllreduce, kLarge, "", always), "canonical");
  }
  CHECK_EQ(Chosen(Topology::Equal(4096, 1), Goal::kAllreduce, kSmall), "double_tree");
  CHECK(Chosen(Topology::Equal(16, 3), Goal::kAllreduce, kSmall) !=
        Chosen(Topology::Equal(16, 3), Goal::kAllreduce, kLarge));
}

TEST(measurements_say_whether_the_order_of_ranks_is_cheap) {
  const Topology two = Topology::Equal(2, 2);
  Settings always;
  always.reduction = "canonical";
  const auto table = [](const std::string& canonical) {
    return "hierarchical@2,2:1048576=1e-2;canonical@2,2:1048576=" + canonical;
  };
  CHECK_EQ(Chosen(two, Goal::kAllreduce, kLarge, table("1.05e-2")), "canonical");
  CHECK_EQ(Chosen(two, Goal::kAllreduce, kLarge, table("1.3e-2")), "hierarchical");
  CHECK_EQ(Chosen(two, Goal::kAllreduce, kLarge, table("1.3e-2"), always), "canonical");
  // The others alone say nothing about it.
  CHECK_EQ(Chosen(two, Goal::kAllreduce, kLarge, "hierarchical@2,2:1048576=1e-9"), "canonical");
  // Ranks that do not lie host after host: their order cannot use that some share one.
  AlgorithmChoice mixed(two, Table(""), false);
  CHECK(SelectAlgorithm({Goal::kAllreduce, kLarge}, {}, mixed) != "canonical");
  CHECK_EQ(SelectAlgorithm({Goal::kAllreduce, kLarge}, always, mixed), "canonical");
}

TEST(measurements_correct_the_model) {
  const Topology two = Topology::Equal(2, 1);
  const auto chosen = [&](uint64_t bytes, const std::string& table) {
    return Chosen(two, Goal::kAllGather, bytes, table);
  };
  const std::string table =
      "ring_all_gather@1,1:1024=1e-3;log_all_gather@1,1:1024=2e-3;"
      "ring_all_gather@1,1:1048576=9e-3;log_all_gather@1,1:1048576=8e-3";
  CHECK_EQ(chosen(1024, table), "ring_all_gather");
  CHECK_EQ(chosen(1, table), "ring_all_gather");
  CHECK_EQ(chosen(1 << 20, table), "log_all_gather");
  CHECK_EQ(chosen(1 << 30, table), "log_all_gather");
  // Of other hosts nothing was measured, and what was not measured is not compared with what was.
  CHECK_EQ(chosen(1 << 20, "ring_all_gather@2,1:1048576=1e-9"), chosen(1 << 20, ""));
  CHECK_EQ(chosen(1 << 20, "ring_all_gather@1,1:1048576=100"), "ring_all_gather");
  CHECK_EQ(chosen(1 << 20, "log_all_gather@1,1:1048576=100"), "log_all_gather");
}

TEST(a_table_that_is_none_is_refused) {
  for (const char* row :
       {"ring", "ring@", "ring@2,2", "ring@2,2:8", "ring@2,2:8=", "ring@2,2:8=0", "ring@2,2:8=-1",
        "ring@2,2:8=inf", "ring@2,2:8=nan", "ring@2,x:8=1", "ring@0,2:8=1", "ring@2,2:-8=1",
        "rong@2,2:8=1", "ring@2,2:8=1e-3s", "ring@2,2:8=1;;ring@2,2:8=1"}) {
    const auto table = MeasuredTable::Parse(row);
    CHECK(!table.ok());
  }
  CHECK(MeasuredTable::Parse("").ok());
}

TEST(forced_algorithms_win) {
  Settings settings;
  settings.algorithm = "ring,log_reduce_scatter";
  CHECK(CheckForced(settings).ok());
  const Topology two = Topology::Equal(2, 2);
  CHECK_EQ(Chosen(two, Goal::kAllreduce, kLarge, "", settings), "ring");
  CHECK_EQ(Chosen(two, Goal::kReduceScatter, kLarge, "", settings), "log_reduce_scatter");
  CHECK_EQ(Chosen(two, Goal::kBroadcast, kLarge, "", settings),
           Chosen(two, Goal::kBroadcast, kLarge));
  for (const char* wrong : {"rong", "ring,double_tree", "ring,rong"}) {
    settings.algorithm = wrong;
    Status refused = CheckForced(settings);
    CHECK(!refused.ok());
    CHECK(refused.error().kind == ErrorKind::kConfig);
    CHECK(refused.error().message.find(wrong) != std::string::npos);
  }
}

TEST(large_jobs_are_counted_in_part) {
  for (const Topology& topology : {Topology::Equal(512, 8), Topology::Equal(1000, 1)}) {
    for (const Goal goal : {Goal::kAllreduce, Goal::kReduceScatter, Goal::kAllGather,
                            Goal::kBroadcast, Goal::kReduce, Goal::kAllToAll}) {
      Settings fast;
      fast.reduction = "fast";
      CHECK(!Chosen(topology, goal, kLarge, "", fast).empty());
    }
  }
}

}  // namespace
}  // namespace horoacc
