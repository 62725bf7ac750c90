#include "execute/cuda/host/leader_run.h"

namespace horoacc::cuda {

struct LeaderRun::Host {
  LeaderRun& run;
  const Window& window;
  GpuEvent* ended;  ///< behind the reduction that is launched

  [[nodiscard]] uint32_t ranks() const { return run.group_.ranks(); }
  [[nodiscard]] bool leads() const { return run.group_.me() == GpuGroup::kLeader; }
  [[nodiscard]] Result<bool> IsPacked() const { return run.HasRun(window.packed); }
  [[nodiscard]] Result<bool> IsReduced() const { return run.HasRun(window.reduced); }
  void TellPacked() const { run.group_.Tell(&GpuPeerInfo::packed, window.number); }
  void TellReduced() const { run.group_.Tell(&GpuPeerInfo::reduced, window.number); }
  [[nodiscard]] bool HasTold(uint32_t rank) const {
    return run.group_.info(rank).packed.load(std::memory_order_acquire) >= window.number;
  }
  [[nodiscard]] bool HasResult() const {
    const GpuPeerInfo& leader = run.group_.info(GpuGroup::kLeader);
    return leader.reduced.load(std::memory_order_acquire) >= window.number;
  }
  [[nodiscard]] Status ReduceAll() const {
    HA_TRY(run.bucket_.ReduceAll(window.index, run.group_.reducing_stream()));
    HA_ASSIGN(*ended, run.group_.RecordReduced());
    return {};
  }
};

Result<bool> LeaderRun::Launch(Window& window) {
  Host host{*this, window, &window.reduced};
  HA_ASSIGN(const bool launched, steps_.Launch(host));
  if (launched) steps_ = {};
  return launched;
}

Result<bool> LeaderRun::IsReduced(const Window& window) {
  Host host{*this, window, nullptr};
  return LeaderWindow::IsReduced(host);
}

}  // namespace horoacc::cuda
