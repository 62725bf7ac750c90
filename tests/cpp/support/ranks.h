#pragma once
// N ranks as N threads of this process, each with an engine of its own over the inproc transport.
#include <functional>
#include <latch>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "runtime/engine/engine.h"
#include "support/check.h"
#include "transport/bootstrap/inproc.h"

namespace horoacc::testing {

using Pairs = std::vector<std::pair<std::string, std::string>>;

/// Runs `body(engine, rank)` on every rank. `settings` are key=value pairs; control=tcp means
/// "messages" here: the tree controller over inproc mailboxes. `adjust` may change a rank's parts,
/// `change` its settings.
inline void RunRanks(int ranks, const Pairs& settings,
                     const std::function<void(Engine&, int)>& body,
                     const std::function<void(EngineParts&, int)>& adjust = {},
                     const std::function<void(Settings&, int)>& change = {}) {
  auto hub = InprocHub::Create(ranks, ControlSegment::BytesFor(ranks), 1ull << 32);
  CHECK(hub.ok());
  std::vector<std::jthread> threads;
  std::latch finished(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      auto parsed = Settings::Parse(settings);
      CHECK(parsed.ok());
      if (change) change(parsed.value(), rank);
      EngineParts parts;
      parts.placement = {rank, ranks, rank, ranks, 0, 1};
      parts.bootstrap = hub.value()->MakeBootstrap(rank);
      parts.share = hub.value()->MakeHostShare(rank);
      if (parsed.value().control == ControlKind::kTcp)
        parts.links = hub.value()->MakeControlLinks(rank);
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
