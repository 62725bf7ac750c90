#pragma once
// When a message arrives, given the other messages under way. Interfaces and a host's memory serve
// one message after the other; a message passes as soon as its first byte is there.
#include <algorithm>
#include <vector>

#include "schedule/simulate/simulator.h"
#include "schedule/topology.h"

namespace horoacc::schedule {

struct Passage {
  double begins;  ///< when the first byte arrives
  double ends;    ///< when the last byte arrives
};

/// A resource that serves one message after the other.
struct Server {
  double free = 0;    ///< the time from which on it is free
  double served = 0;  ///< seconds for which it was busy
  /// Returns when it begins to serve a message that arrives at `now`.
  double Serve(double now, double seconds) {
    const double start = std::max(now, free);
    free = start + seconds;
    served += seconds;
    return start;
  }
};

class Wires {
 public:
  /// `hosts`: simulated hosts: all of the topology, or the first for all.
  Wires(const Topology& topology, const Fabric& fabric, uint32_t hosts)
      : topology_(topology),
        fabric_(fabric),
        hosts_(hosts),
        out_(static_cast<size_t>(hosts) * fabric.nics),
        in_(out_.size()),
        memory_(hosts) {}

  [[nodiscard]] bool Local(uint32_t from, uint32_t to) const {
    return topology_.host_of(from) == topology_.host_of(to);
  }
  /// When a message inside a host arrives.
  Passage Pass(uint32_t from, double bytes, double now) {
    const double begins =
        memory_[topology_.host_of(from) % hosts_].Serve(now, bytes / fabric_.memory_bandwidth) +
        fabric_.local_latency;
    return {begins, begins};
  }
  /// A message leaves its host; returns when it reaches the other host's interface.
  double Leave(uint32_t from, double bytes, double now) {
    return out_[Interface(from)].Serve(now, bytes / fabric_.nic_bandwidth) +
           fabric_.network_latency;
  }
  /// When a message that has reached its host's interface arrives.
  Passage Land(uint32_t to, double bytes, double now) {
    const double served = bytes / fabric_.nic_bandwidth;
    const double begins = in_[Interface(to)].Serve(now, served);
    return {begins, begins + served};
  }

  /// Seconds for which the busiest interface or memory was busy.
  [[nodiscard]] double busiest() const {
    double most = 0;
    for (const auto* servers : {&out_, &in_, &memory_}) {
      for (const Server& server : *servers) most = std::max(most, server.served);
    }
    return most;
  }

 private:
  [[nodiscard]] size_t Interface(uint32_t rank) const {
    const uint32_t host = topology_.host_of(rank);
    return static_cast<size_t>(host % hosts_) * fabric_.nics +
           (rank - topology_.first(host)) % fabric_.nics;
  }

  const Topology& topology_;
  const Fabric& fabric_;
  const uint32_t hosts_;
  std::vector<Server> out_, in_, memory_;
};

}  // namespace horoacc::schedule
