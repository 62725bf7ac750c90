#pragma once
// Ranks as threads on several hosts: each host's share memory, and all are joined by links alone.
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "support/ranks.h"

namespace horoacc::testing {

/// `ranks_of`: by host. `adjust` may change a rank's parts.
inline void RunHosts(const std::vector<int>& ranks_of,
                     const std::function<void(Engine&, int)>& body,
                     const std::function<void(EngineParts&, int)>& adjust = {}) {
  std::string hosts;
  for (const int ranks : ranks_of) hosts += (hosts.empty() ? "" : "+") + std::to_string(ranks);
  const int size = std::accumulate(ranks_of.begin(), ranks_of.end(), 0);
  RunRanks(size, {{"simulated_hosts", hosts}}, body, adjust);
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
