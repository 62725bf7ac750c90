#pragma once
// N ranks as N threads of this process, each with an engine of its own over the inproc transports.
#include <functional>
#include <latch>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "api/hosts.h"
#include "base/clock.h"
#include "runtime/engine/engine.h"
#include "support/check.h"
#include "support/inproc_data.h"
#include "transport/bootstrap/inproc.h"
#include "transport/data/shm/shm_data.h"

namespace horoacc::testing {

using Pairs = std::vector<std::pair<std::string, std::string>>;

inline Pairs With(Pairs settings, const Pairs& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

/// Of address space. An emulator looks at each page of it.
#if defined(HOROACC_EMULATED)
inline constexpr size_t kRankMemory = size_t{1} << 30;
#else
inline constexpr size_t kRankMemory = size_t{1} << 32;
#endif

/// One job for each controller: all ranks on one host, and each on a host of its own.
inline const std::vector<Pairs> kControllers = {
    {}, {{"simulated_hosts", "each"}, {"reduction", "canonical"}}};

/// The hosts on which the ranks of a job are threads: ranks of one host share memory, and all ranks
/// are joined by links alone if there are several hosts.
class ThreadHosts {
 public:
  ThreadHosts(int ranks, const Settings& settings) : ranks_(ranks) {
    auto hub = InprocHub::Create(ranks, ControlSegment::BytesFor(ranks), kRankMemory);
    CHECK(hub.ok());
    job_ = std::move(hub).value();
    if (settings.simulated_hosts.empty() || ranks == 1) return;
    auto hosts = SimulatedHosts(settings, ranks);
    CHECK(hosts.ok());
    for (const int size : hosts.value()) {
      Host& host = hosts_.emplace_back();
      const size_t control = ControlSegment::BytesFor(static_cast<uint32_t>(size)) +
                             MultiHostParts::ControlBytes(size, ranks);
      auto shared = InprocHub::Create(size, control, kRankMemory);
      CHECK(shared.ok());
      host.hub = std::move(shared).value();
      for (int local = 0; local < size; ++local) {
        host.ranks.push_back(static_cast<int>(host_of_.size()));
        host_of_.push_back(static_cast<int>(hosts_.size()) - 1);
      }
    }
    auto network = InprocDataHub::Create(ranks, {.seed = 3, .longest_delay = 4});
    CHECK(network.ok());
    network_ = std::move(network).value();
  }

  [[nodiscard]] EngineParts PartsOf(int rank) const {
    EngineParts parts;
    parts.placement = {rank, ranks_, rank, ranks_, 0, 1};
    parts.bootstrap = job_->MakeBootstrap(rank);
    if (hosts_.empty()) {
      parts.share = job_->MakeHostShare(rank);
      return parts;
    }
    const Host& host = hosts_[host_of_[rank]];
    const int local = rank - host.ranks[0];
    parts.share = host.hub->MakeHostShare(local);
    parts.share.ranks = host.ranks;
    parts.links = job_->MakeControlLinks(rank);
    parts.keep_alive = {host.hub, network_};
    parts.placement.local_rank = local;
    parts.placement.local_size = static_cast<int>(host.ranks.size());
    MultiHostParts multi_host;
    multi_host.host_of = host_of_;
    multi_host.across = network_->MakeLinks(rank);
    multi_host.Place(parts.share);
    parts.multi_host = std::move(multi_host);
    return parts;
  }

 private:
  struct Host {
    std::shared_ptr<InprocHub> hub;
    std::vector<int> ranks;
  };
  const int ranks_;
  std::shared_ptr<InprocHub> job_;
  std::vector<Host> hosts_;  ///< none: all ranks share memory
  std::vector<int> host_of_;
  std::shared_ptr<InprocDataHub> network_;
};

/// Runs `body(engine, rank)` on every rank. `settings` are key=value pairs; simulated_hosts divides
/// the ranks into hosts. `adjust` may change a rank's parts, `change` its settings.
inline void RunRanks(int ranks, const Pairs& settings,
                     const std::function<void(Engine&, int)>& body,
                     const std::function<void(EngineParts&, int)>& adjust = {},
                     const std::function<void(Settings&, int)>& change = {}) {
  const auto common = Settings::Parse(settings);
  CHECK(common.ok());
  const ThreadHosts hosts(ranks, common.value());
  std::vector<std::jthread> threads;
  std::latch finished(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      auto parsed = Settings::Parse(settings);
      CHECK(parsed.ok());
      if (change) change(parsed.value(), rank);
      EngineParts parts = hosts.PartsOf(rank);
      if (adjust) adjust(parts, rank);
      auto engine = Engine::Create(std::move(parsed).value(), std::move(parts));
      CHECK(engine.ok());
      body(*engine.value(), rank);
      finished.arrive_and_wait();
      CHECK(engine.value()->Shutdown().ok());
    });
  }
}

inline Submission Make(Collective collective, std::string name, DType type, Dims shape,
                       const void* input, void* output, ReduceOp op = ReduceOp::kSum) {
  Submission submission;
  submission.name = std::move(name);
  submission.request.collective = collective;
  submission.request.op = op;
  submission.request.tensors = {{type, shape}};
  submission.buffers = {{input, output}};
  return submission;
}

/// Waits until the condition holds, for 30 s at the most.
inline bool Eventually(const std::function<bool()>& condition) {
  const int64_t deadline = NowNs() + 30 * kSecond;
  while (!condition()) {
    if (NowNs() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// One of the engine's counters.
inline uint64_t Counter(Engine& engine, const std::string& name) {
  std::istringstream lines(engine.telemetry().CounterText());
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name + "=")) return std::stoull(line.substr(name.size() + 1));
  }
  check::Fail(__FILE__, __LINE__, "no counter " + name);
}

inline Status WaitAndRelease(Engine& engine, uint64_t handle) {
  Status outcome = engine.Wait(handle, NowNs() + 60 * kSecond);
  engine.Release(handle);
  return outcome;
}

}  // namespace horoacc::testing
