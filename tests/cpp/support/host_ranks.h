#pragma once
// Ranks as threads on several hosts: each host's share memory, and all are joined by links alone.
#include <memory>
#include <vector>

#include "support/inproc_data.h"
#include "support/ranks.h"
#include "transport/data/shm/shm_data.h"

namespace horoacc::testing {

/// `ranks_of`: by host. `adjust` may change a rank's parts.
inline void RunHosts(const std::vector<int>& ranks_of,
                     const std::function<void(Engine&, int)>& body,
                     const std::function<void(EngineParts&, int)>& adjust = {}) {
  struct Host {
    std::shared_ptr<InprocHub> hub;
    std::vector<int> ranks;
  };
  std::vector<Host> hosts;
  std::vector<int> host_of;
  for (const int ranks : ranks_of) {
    Host& host = hosts.emplace_back();
    const size_t control = ControlSegment::BytesFor(static_cast<uint32_t>(ranks));
    auto hub = InprocHub::Create(ranks, control + ShmDataControlBytes(ranks), 1ull << 32);
    CHECK(hub.ok());
    host.hub = hub.value();
    for (int local = 0; local < ranks; ++local) {
      host.ranks.push_back(static_cast<int>(host_of.size()));
      host_of.push_back(static_cast<int>(hosts.size()) - 1);
    }
  }
  const int size = static_cast<int>(host_of.size());
  auto network = InprocDataHub::Create(size, {.seed = 3, .longest_delay = 4});
  CHECK(network.ok());
  RunRanks(size, {{"control", "tcp"}}, body, [&](EngineParts& parts, int rank) {
    const Host& host = hosts[host_of[rank]];
    const int local = rank - host.ranks[0];
    parts.share = host.hub->MakeHostShare(local);
    parts.share.ranks = host.ranks;
    parts.keep_alive.push_back(host.hub);
    parts.keep_alive.push_back(network.value());
    parts.placement.local_rank = local;
    parts.placement.local_size = static_cast<int>(host.ranks.size());
    MultiHostParts multi_host;
    multi_host.host_of = host_of;
    multi_host.across = network.value()->MakeLinks(rank);
    multi_host.shm_offset = ControlSegment::BytesFor(static_cast<uint32_t>(host.ranks.size()));
    parts.multi_host = std::move(multi_host);
    if (adjust) adjust(parts, rank);
  });
}

inline float Sum(Engine& engine, const std::string& name, float value, uint32_t process_set = 0) {
  Submission submission = Make(Collective::kAllreduce, name, DType::kFloat32, {1}, &value, &value);
  submission.process_set = process_set;
  auto handle = engine.Submit(std::move(submission));
  CHECK(handle.ok());
  CHECK(WaitAndRelease(engine, handle.value()).ok());
  return value;
}

}  // namespace horoacc::testing
