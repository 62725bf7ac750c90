#pragma once
// The shapes of hosts for which schedules are proven.
#include <cstdint>
#include <random>
#include <vector>

#include "schedule/topology.h"

namespace horoacc::schedule {

/// Every hosts × local up to `most` ranks.
inline std::vector<Topology> EqualShapes(uint32_t most) {
  std::vector<Topology> shapes;
  for (uint32_t hosts = 1; hosts <= most; ++hosts) {
    for (uint32_t local = 1; hosts * local <= most; ++local) {
      shapes.push_back(Topology::Equal(hosts, local));
    }
  }
  return shapes;
}

/// Every way of giving up to `most` ranks to hosts in order, but the equal ones.
inline std::vector<Topology> UnequalShapes(uint32_t most) {
  std::vector<Topology> shapes;
  for (uint32_t ranks = 1; ranks <= most; ++ranks) {
    // Bit k: a new host begins behind rank k.
    for (uint32_t cuts = 0; cuts < 1u << (ranks - 1); ++cuts) {
      std::vector<uint32_t> hosts{1};
      for (uint32_t k = 0; k + 1 < ranks; ++k) {
        if (cuts >> k & 1) {
          hosts.push_back(1);
        } else {
          ++hosts.back();
        }
      }
      if (Topology shape(hosts); !shape.equal()) shapes.push_back(std::move(shape));
    }
  }
  return shapes;
}

inline std::vector<Topology> SeededShapes(uint32_t count, uint32_t most, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Topology> shapes;
  while (shapes.size() < count) {
    const uint32_t ranks = 13 + random() % (most - 12);
    const uint32_t largest = 2 + random() % 15;
    std::vector<uint32_t> hosts;
    for (uint32_t left = ranks; left > 0; left -= hosts.back()) {
      hosts.push_back(std::min<uint32_t>(left, 1 + random() % largest));
    }
    if (Topology shape(hosts); !shape.equal()) shapes.push_back(std::move(shape));
  }
  return shapes;
}

}  // namespace horoacc::schedule
