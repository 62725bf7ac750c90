// The simulator against formulas, against itself without its shortcuts, and at 24,576 ranks.
#include <cmath>

#include "schedule/audit.h"
#include "schedule/simulate/simulator.h"
#include "support/check.h"

using namespace horoacc;
using namespace horoacc::schedule;

namespace {

const Algorithm& Named(const char* name) {
  const auto found = FindAlgorithm(name);
  CHECK(found.ok());
  return *found.value();
}

bool Near(double a, double b, double part) { return std::abs(a - b) <= part * std::abs(b); }

double SecondsOf(const char* name, const Plan& plan, const Fabric& fabric, double bytes) {
  return Predict(*Named(name).make(plan), plan.topology, fabric, bytes).seconds;
}

// Only latency and one bandwidth.
Fabric Plain() {
  Fabric fabric;
  fabric.overhead = 0;
  fabric.reduce_bandwidth = 1e30;
  return fabric;
}

const Plan kSummit{.topology = Topology::Equal(3072, 8)};

double TreeAdvantage(const Fabric& fabric) {
  return SecondsOf("ring", kSummit, fabric, 4096) / SecondsOf("double_tree", kSummit, fabric, 4096);
}

}  // namespace

TEST(a_ring_takes_what_the_formula_says) {
  const Fabric fabric = Plain();
  for (const uint32_t ranks : {2u, 5u, 16u, 100u}) {
    const Plan plan{.topology = Topology::Equal(ranks, 1)};
    for (const double bytes : {4096.0, 1e9}) {
      const Run run = Simulate(*Named("ring").make(plan), plan.topology, fabric, bytes, 1);
      const double each = fabric.network_latency + bytes / ranks / fabric.nic_bandwidth;
      CHECK(Near(run.window_ends[0], 2.0 * (ranks - 1) * each, 1e-9));
    }
  }
}

TEST(a_tree_takes_a_latency_for_each_level) {
  const Fabric fabric = Plain();
  for (const uint32_t ranks : {2u, 8u, 9u, 1000u}) {
    const Plan plan{.topology = Topology::Equal(ranks, 1)};
    const Run run = Simulate(*Named("double_tree").make(plan), plan.topology, fabric, 1, 1);
    const double levels = 2.0 * std::ceil(std::log2(ranks));
    CHECK(Near(run.window_ends[0], levels * fabric.network_latency, 1e-3));
  }
}

TEST(streams_and_interfaces_bound_the_bandwidth) {
  Fabric fabric = Plain();
  const Plan plan{.topology = Topology::Equal(2, 1)};
  const double bytes = 1e9;
  const double free = SecondsOf("chain_broadcast", plan, fabric, bytes);
  CHECK(Near(free, bytes / fabric.nic_bandwidth, 0.01));
  fabric.stream_bandwidth /= 4;
  CHECK(Near(SecondsOf("chain_broadcast", plan, fabric, bytes), 4 * free, 0.01));
  // Two rails through one interface, and through two.
  Fabric rails = Plain();
  const Plan two{.topology = Topology::Equal(2, 2)};
  const double shared = SecondsOf("cpu_reduce", two, rails, bytes);
  rails.nics = 2;
  CHECK(Near(SecondsOf("cpu_reduce", two, rails, bytes), shared / 2, 0.1));
}

TEST(nothing_is_faster_than_its_bytes_and_rounds) {
  const Fabric fabric;
  for (const auto& [hosts, local] : {std::pair{2u, 2u}, {4u, 2u}, {3u, 4u}, {8u, 1u}, {1u, 8u}}) {
    const Plan plan{.topology = Topology::Equal(hosts, local)};
    for (const Algorithm& algorithm : Algorithms()) {
      const auto audit = AuditAlgorithm(algorithm, plan);
      CHECK(audit.ok());
      const auto schedule = algorithm.make(plan);
      for (const double bytes : {4e3, 1e6, 64e6, 1e9}) {
        const double seconds = Predict(*schedule, plan.topology, fabric, bytes).seconds;
        CHECK(seconds >= audit.value().proof.rounds * fabric.local_latency);
        for (const Fraction& host : audit.value().host_sends) {
          const double sent = bytes * static_cast<double>(host.over) / host.under;
          CHECK(seconds >= 0.999 * sent / fabric.nic_bandwidth);
        }
      }
    }
  }
}

TEST(one_host_stands_for_all) {
  const Fabric fabric;
  uint32_t compared = 0;
  for (const auto& [hosts, local] :
       {std::pair{192u, 1u}, {64u, 8u}, {8u, 6u}, {2u, 2u}, {3u, 1u}, {1u, 16u}}) {
    const Plan plan{.topology = Topology::Equal(hosts, local)};
    for (const Algorithm& algorithm : Algorithms()) {
      const auto schedule = algorithm.make(plan);
      if (!schedule->facts().hosts_alike) continue;
      for (const double bytes : {4e3, 1e8}) {
        const Run part = Simulate(*schedule, plan.topology, fabric, bytes, 3);
        const Run whole = Simulate(*schedule, plan.topology, fabric, bytes, 3, false);
        CHECK(part.events < whole.events || hosts == 1);
        if (!Near(part.window_ends.back(), whole.window_ends.back(), 0.01)) {
          check::Fail(__FILE__, __LINE__,
                      std::string(algorithm.name) + " on " + std::to_string(hosts) + "x" +
                          std::to_string(local) + ", " + std::to_string(bytes) +
                          " bytes: one host " + std::to_string(part.window_ends.back()) + ", all " +
                          std::to_string(whole.window_ends.back()));
        }
        ++compared;
      }
    }
  }
  CHECK(compared > 50);
}

TEST(few_windows_stand_for_many) {
  const Fabric fabric;
  for (const auto& [hosts, local] : {std::pair{2u, 2u}, {8u, 4u}, {64u, 1u}}) {
    const Plan plan{.topology = Topology::Equal(hosts, local)};
    for (const char* name : {"ring", "double_tree", "trees", "hierarchical", "hierarchical_tree",
                             "cpu_reduce", "cpu_reduce_tree"}) {
      const auto schedule = Named(name).make(plan);
      const double bytes = 256e6;
      const Prediction told = Predict(*schedule, plan.topology, fabric, bytes);
      const Run whole =
          Simulate(*schedule, plan.topology, fabric, bytes / told.windows, told.windows);
      if (!Near(told.seconds, whole.window_ends.back(), 0.1)) {
        check::Fail(__FILE__, __LINE__,
                    std::string(name) + " on " + std::to_string(hosts) + "x" +
                        std::to_string(local) + ": " + std::to_string(told.seconds) + " s in " +
                        std::to_string(told.windows) + " windows, whole " +
                        std::to_string(whole.window_ends.back()));
      }
    }
  }
}

TEST(trees_beat_the_ring_180_times_at_24576_ranks) {
  const Fabric fabric;
  CHECK(TreeAdvantage(fabric) >= 180);
  double Fabric::* const constants[] = {
      &Fabric::local_latency,    &Fabric::local_bandwidth,  &Fabric::memory_bandwidth,
      &Fabric::network_latency,  &Fabric::stream_bandwidth, &Fabric::nic_bandwidth,
      &Fabric::reduce_bandwidth, &Fabric::overhead,         &Fabric::slice_bytes};
  for (double Fabric::* const constant : constants) {
    for (const double factor : {0.5, 2.0}) {
      Fabric other = fabric;
      other.*constant *= factor;
      CHECK(TreeAdvantage(other) >= 180);
    }
  }
  // What decides small messages, in every combination.
  for (const double local : {0.5, 1.0, 2.0}) {
    for (const double network : {0.5, 1.0, 2.0}) {
      for (const double overhead : {0.5, 1.0, 2.0}) {
        Fabric other = fabric;
        other.local_latency *= local;
        other.network_latency *= network;
        other.overhead *= overhead;
        CHECK(TreeAdvantage(other) >= 180);
      }
    }
  }
}

TEST(the_ring_wins_large_messages) {
  const Plan plan{.topology = Topology::Equal(8, 1)};
  const Fabric fabric;
  CHECK(SecondsOf("double_tree", plan, fabric, 4096) < SecondsOf("ring", plan, fabric, 4096));
  CHECK(SecondsOf("double_tree", plan, fabric, 1e10) > SecondsOf("ring", plan, fabric, 1e10));
}

TEST(hosts_alike_is_true) {
  // Moving every rank by one host gives the same steps, but for the names of chunks.
  for (const auto& [hosts, local] : {std::pair{4u, 3u}, {5u, 1u}, {3u, 2u}}) {
    const Plan plan{.topology = Topology::Equal(hosts, local)};
    const uint32_t ranks = hosts * local;
    for (const Algorithm& algorithm : Algorithms()) {
      const auto schedule = algorithm.make(plan);
      if (!schedule->facts().hosts_alike) continue;
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        const uint32_t moved = (rank + local) % ranks;
        for (uint32_t lane = 0; lane < schedule->facts().lanes; ++lane) {
          CHECK_EQ(schedule->steps(rank, lane), schedule->steps(moved, lane));
          for (uint32_t k = 0; k < schedule->steps(rank, lane); ++k) {
            const Step step = schedule->step(rank, lane, k);
            const Step other = schedule->step(moved, lane, k);
            CHECK(step.op == other.op && step.flags == other.flags && step.count == other.count &&
                  step.channel == other.channel && step.after == other.after);
            std::vector<uint32_t> peers, others;
            const auto moving = [&](uint32_t p) { peers.push_back((p + local) % ranks); };
            const auto there = [&](uint32_t p) { others.push_back(p); };
            ForEachSource(step, rank, moving);
            ForEachTarget(step, rank, moving);
            ForEachSource(other, moved, there);
            ForEachTarget(other, moved, there);
            CHECK(peers == others);
          }
        }
      }
    }
  }
}
