#pragma once
// What the links of a cluster cost: latency and bandwidth by class, and what is shared.
#include <cstdint>

namespace horoacc::schedule {

/// Seconds and bytes a second. The defaults are a cluster of today with one 100 Gbit/s interface a
/// host; they are meant to be replaced by fitted ones.
struct Fabric {
  double local_latency = 1.5e-6;    ///< between two ranks of a host
  double local_bandwidth = 20e9;    ///< of one message inside a host
  double memory_bandwidth = 160e9;  ///< of all messages inside a host together
  double network_latency = 5e-6;
  double stream_bandwidth = 12.5e9;  ///< of one message between hosts (a cap on each flow)
  double nic_bandwidth = 12.5e9;     ///< of an interface, each way
  uint32_t nics = 1;                 ///< of a host; local rank i uses interface i mod nics
  double reduce_bandwidth = 20e9;    ///< of what a rank adds up, or copies
  double overhead = 0.5e-6;          ///< a rank's own time for each message
  double slice_bytes = 256 << 10;    ///< what a rank reduces at once while more arrives
};

}  // namespace horoacc::schedule
