#pragma once
// How long a schedule takes on a fabric: discrete events over the steps of all lanes.
//
// Steps are asked for when they are due and never kept. If all hosts behave alike, one host is
// simulated: messages from a neighbour are copies of those that its own counterpart sends, so that
// a ring over 24,576 ranks costs 8 ranks' steps. Other schedules are simulated in full.
#include <cstdint>
#include <vector>

#include "schedule/schedule.h"
#include "schedule/topology.h"

namespace horoacc::schedule {

/// The cost of a cluster's links: latency and bandwidth by class. Seconds and bytes a second. The
/// defaults are a cluster of today with one 100 Gbit/s interface a host; they are meant to be
/// replaced by fitted ones.
struct Fabric {
  double local_latency = 1.5e-6;    ///< between two ranks of a host
  double local_bandwidth = 20e9;    ///< of one message inside a host
  double memory_bandwidth = 160e9;  ///< of all messages inside a host together
  double network_latency = 5e-6;
  double stream_bandwidth = 12.5e9;  ///< of one message between hosts (a cap on each flow)
  double nic_bandwidth = 12.5e9;     ///< of an interface, each way
  uint32_t nics = 1;                 ///< of a host; local rank i uses interface i mod nics
  double reduce_bandwidth = 20e9;    ///< of a rank that adds up, or copies
  double overhead = 0.5e-6;          ///< a rank's own time for each message
  double slice_bytes = 256 << 10;    ///< a rank reduces so many bytes while more arrive
};

struct Run {
  std::vector<double> window_ends;  ///< when the last lane ended each window
  double busiest = 0;  ///< seconds for which the busiest lane, link, interface or memory was busy
  uint64_t events = 0;
};

/// `bytes` is the vector of one window. `one_host` false simulates every rank whatever the
/// symmetry.
[[nodiscard]] Run Simulate(const Schedule& schedule, const Topology& topology, const Fabric& fabric,
                           double bytes, uint32_t windows, bool one_host = true);

struct Prediction {
  double seconds = 0;
  uint32_t windows = 1;  ///< the best number of parts of the vector
  uint64_t events = 0;
};

/// The time with the best number of windows, a power of two. Of many windows the first few are
/// simulated; the others follow at the pace of the last simulated ones, and no faster than the
/// busiest resource serves a window.
[[nodiscard]] Prediction Predict(const Schedule& schedule, const Topology& topology,
                                 const Fabric& fabric, double bytes);

}  // namespace horoacc::schedule
