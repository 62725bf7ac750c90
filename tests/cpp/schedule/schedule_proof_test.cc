// Every shipped schedule is right, and costs what it is said to, for every shape that is listed.
#include "schedule/audit.h"
#include "support/check.h"
#include "support/shapes.h"

using namespace horoacc;
using namespace horoacc::schedule;

namespace {

std::string Named(const Topology& shape) {
  std::string text;
  for (uint32_t h = 0; h < shape.hosts(); ++h) {
    text += (h == 0 ? "" : "+") + std::to_string(shape.local(h));
  }
  return text;
}

Audit Right(const Algorithm& algorithm, const Plan& plan) {
  Result<Audit> audit = AuditAlgorithm(algorithm, plan);
  if (!audit.ok()) {
    check::Fail(__FILE__, __LINE__,
                "ranks by host " + Named(plan.topology) + ", root " + std::to_string(plan.root) +
                    ", " + std::to_string(plan.trees) + " trees: " + audit.error().message);
  }
  return std::move(audit).value();
}

bool Rooted(const Algorithm& algorithm) {
  return algorithm.goal == Goal::kBroadcast || algorithm.goal == Goal::kReduce;
}

/// Rooted algorithms with another root for each shape.
void CheckByHosts(const std::vector<Topology>& shapes) {
  for (uint32_t k = 0; k < shapes.size(); ++k) {
    for (const Algorithm& algorithm : Algorithms()) {
      if (!algorithm.by_hosts) continue;
      const uint32_t root = Rooted(algorithm) ? k * 7 % shapes[k].ranks() : 0;
      Right(algorithm, {.topology = shapes[k], .root = root});
    }
  }
}

const Algorithm& Named(const char* name) {
  const auto found = FindAlgorithm(name);
  CHECK(found.ok());
  return *found.value();
}

Fraction MostOfAHost(const Audit& audit) {
  Fraction most;
  for (const Fraction& host : audit.host_sends) {
    if (host.over * most.under > most.over * host.under) most = host;
  }
  return most;
}

}  // namespace

TEST(flat_algorithms_up_to_64_ranks) {
  for (uint32_t ranks = 1; ranks <= kMostProvableRanks; ++ranks) {
    for (const Algorithm& algorithm : Algorithms()) {
      if (algorithm.by_hosts) continue;
      const uint32_t roots = Rooted(algorithm) ? ranks : 1;
      for (uint32_t root = 0; root < roots; ++root) {
        Right(algorithm, {.topology = Topology::Equal(ranks, 1), .root = root});
      }
    }
  }
}

TEST(trees_on_1_to_16_lanes) {
  for (uint32_t trees = 1; trees <= 16; ++trees) {
    for (uint32_t ranks = 1; ranks <= kMostProvableRanks; ranks += ranks < 20 ? 1 : 11) {
      Right(Named("trees"), {.topology = Topology::Equal(ranks, 1), .trees = trees});
    }
  }
}

TEST(equal_hosts_up_to_64_ranks) { CheckByHosts(EqualShapes(64)); }

TEST(every_unequal_shape_up_to_12_ranks) { CheckByHosts(UnequalShapes(12)); }

TEST(seeded_unequal_shapes_up_to_64_ranks) { CheckByHosts(SeededShapes(500, 64, 20240817)); }

TEST(bytes_that_leave_a_host) {
  const Plan two_by_two{.topology = Topology::Equal(2, 2)};
  CHECK(MostOfAHost(Right(Named("ring"), two_by_two)) == Fraction{3, 2});
  for (const char* name : {"hierarchical", "hierarchical_tree", "cpu_reduce", "cpu_reduce_tree"}) {
    CHECK(MostOfAHost(Right(Named(name), two_by_two)) == Fraction{1, 1});
  }
  // Rings across hosts send 2(H-1)/H, whatever the ranks of each host.
  for (const Topology& shape : SeededShapes(40, 40, 7)) {
    const Fraction least{2ull * (shape.hosts() - 1), shape.hosts()};
    for (const char* name : {"hierarchical", "cpu_reduce"}) {
      for (const Fraction& host : Right(Named(name), {.topology = shape}).host_sends) {
        CHECK(host == least);
      }
    }
  }
}

TEST(canonical_reduce_from_every_root) {
  for (uint32_t hosts = 1; hosts <= 9; ++hosts) {
    for (const uint32_t local : {1u, 2u, 3u, 4u}) {
      for (uint32_t root = 0; root < hosts * local; ++root) {
        Right(Named("canonical_reduce"), {.topology = Topology::Equal(hosts, local), .root = root});
      }
    }
  }
}

TEST(sums_in_rank_order_leave_a_host_once) {
  for (const auto& [hosts, local] : {std::pair{2u, 1u}, {2u, 2u}, {4u, 2u}, {8u, 1u}, {4u, 8u}}) {
    const Topology shape = Topology::Equal(hosts, local);
    const Audit scatter = Right(Named("canonical_reduce_scatter"), {.topology = shape});
    for (const Fraction& host : scatter.host_sends) CHECK(host == Fraction{hosts - 1, hosts});
    for (const uint32_t root : {0u, local, shape.ranks() - 1}) {
      const Audit reduce = Right(Named("canonical_reduce"), {.topology = shape, .root = root});
      std::vector<uint64_t> received(hosts);
      const uint64_t whole = reduce.host_sends[0].under;
      for (const LinkUse& link : reduce.proof.links) {
        const uint32_t to = shape.host_of(link.to);
        if (shape.host_of(link.from) != to) received[to] += link.chunks;
      }
      for (uint32_t host = 0; host < hosts; ++host) {
        const bool two = hosts == 2 && host == shape.host_of(root);
        CHECK_EQ(reduce.host_sends[host].over, two ? 0 : whole);
        CHECK(received[host] <= whole);
      }
    }
  }
}

TEST(rails_send_one_message_per_remote_rank_and_host) {
  for (const Topology& shape : SeededShapes(40, 40, 8)) {
    const Audit rails = Right(Named("rail_all_to_all"), {.topology = shape});
    CHECK_EQ(rails.network_messages, shape.ranks() * (shape.hosts() - 1));
  }
  const Plan plan{.topology = Topology::Equal(4, 8)};
  const Audit direct = Right(Named("direct_all_to_all"), plan);
  const Audit rails = Right(Named("rail_all_to_all"), plan);
  CHECK_EQ(direct.network_messages, 4 * 3 * 8 * 8);
  CHECK_EQ(rails.network_messages, 4 * 3 * 8);
  for (uint32_t h = 0; h < 4; ++h) CHECK(direct.host_sends[h] == rails.host_sends[h]);
  // No message leaves its rail.
  for (const LinkUse& link : rails.proof.links) {
    if (link.from / 8 != link.to / 8) CHECK_EQ(link.from % 8, link.to % 8);
  }
}

TEST(trees_spread_their_load) {
  for (const uint32_t trees : {2u, 4u, 8u, 16u}) {
    for (const uint32_t ranks : {8u, 12u, 16u, 33u, 64u}) {
      const Plan plan{.topology = Topology::Equal(ranks, 1), .trees = trees};
      const Audit audit = Right(Named("trees"), plan);
      const double mean = 2.0 * (ranks - 1) / ranks;
      CHECK(static_cast<double>(audit.most_sent.over) / audit.most_sent.under < 1.2 * mean);
    }
  }
}

TEST(no_rank_is_inside_both_of_two_trees) {
  for (uint32_t ranks = 2; ranks <= 64; ++ranks) {
    const Audit audit = Right(Named("double_tree"), {.topology = Topology::Equal(ranks, 1)});
    CHECK(audit.most_sent.over <= 2 * audit.most_sent.under);
  }
}
