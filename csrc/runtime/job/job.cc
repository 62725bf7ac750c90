#include "runtime/job/job.h"

#include <poll.h>

#include <algorithm>

#include "schedule/select.h"
#include "transport/control/faulty_links.h"

namespace horoacc {

Job::Job(Settings agreed, EngineParts parts)
    : settings(std::move(agreed)),
      placement(parts.placement),
      log(placement.rank, settings.log_level, settings.log_hide_time),
      keep_alive(std::move(parts.keep_alive)),
      mpi(std::move(parts.mpi)),
      bootstrap(std::move(parts.bootstrap)),
      share(std::move(parts.share)),
      links(std::move(parts.links)),
      control(share, settings.fusion_threshold),
      doorbells(control.doorbells(), share.wake),
      arena(std::make_shared<Arena>(share.memory[share.local_rank].data(),
                                    share.memory[share.local_rank].size(),
                                    share.memory[share.local_rank].fd(), 0)),
      blocks(*this),
      multi_host_parts(std::move(parts.multi_host)),
      faults(parts.faults ? std::move(parts.faults)
                          : std::make_shared<FaultPoints>(settings.fault, placement.rank)),
      events(settings.flight_events) {
  if (!links) return;
  links = WithFaults(std::move(links), *faults);
  // After this rank has left no link matters to it.
  mux = std::make_unique<ControlMux>(*links, [this](int peer) {
    return multi_host &&
           (multi_host->channel().HasLeft(peer) || multi_host->channel().HasLeft(rank()));
  });
}

Status Job::StartMultiHost(std::function<void(const Error&)> aborted) {
  HA_TRY(CheckForced(settings));
  HA_ASSIGN(schedule::MeasuredTable table,
            schedule::MeasuredTable::Parse(settings.selection_table));
  measured = std::make_shared<const schedule::MeasuredTable>(std::move(table));
  MultiHostJob::Surroundings around;
  around.rank = rank();
  around.share = &share;
  around.arena = arena.get();
  around.doorbells = &doorbells;
  around.mux = mux.get();
  around.has_left = [this](int local) { return HasLeft(static_cast<uint32_t>(local)); };
  around.stack = [this] { return MainStackOf(stacks.Take()).substr(0, kStackText); };
  around.reading = [this](const ReadingScope& scope) { return reading(scope); };
  around.aborted = std::move(aborted);
  MultiHostParts parts = std::move(*std::exchange(multi_host_parts, std::nullopt));
  host_names = std::move(parts.host_names);
  parts.across = WithFaults(std::move(parts.across), *faults);
  HA_ASSIGN(multi_host, MultiHostJob::Make(std::move(parts), around));
  return {};
}

Status Job::WatchLinks() {
  std::vector<int> descriptors;
  if (links && links->WaitFd() >= 0) descriptors.push_back(links->WaitFd());
  if (multi_host && multi_host->links().WaitFd() >= 0)
    descriptors.push_back(multi_host->links().WaitFd());
  must_poll = (links && links->WaitFd() < 0) || (multi_host && multi_host->links().MustPoll());
  return descriptors.empty() ? Status() : doorbells.WatchLinks(share.local_rank, descriptors);
}

void Job::Release(uint32_t places) {
  blocks.End();
  // MPI has nothing of HoroACC's to give back, and after an abort may not be called.
  if (!mpi) {
    if (mux) mux->Close();
    links.reset();
  }
  if (multi_host && !mpi) multi_host->DropLinks();
  bootstrap.reset();
  doorbells.Release();
  keep_alive.clear();
  share.keep_alive.clear();
  share.control.Forget(control.BytesUpTo(places));
  for (size_t l = 0; l < share.memory.size(); ++l) {
    if (static_cast<int>(l) != share.local_rank) share.memory[l] = Segment();
  }
  share.memory[share.local_rank].KeepOnly(arena->Close());
  for (auto& watched : share.pidfds) watched.reset();
  for (auto& wake : share.wake) wake.reset();
  share.life.reset();
  events.Forget();
}

std::string Job::HostOf(int rank) const {
  return rank < std::ssize(host_names) ? host_names[rank] : host;
}

uint32_t Job::LocalOf(int rank) const {
  return static_cast<uint32_t>(std::ranges::find(share.ranks, rank) - share.ranks.begin());
}

bool Job::HasLeft(uint32_t local) const {
  const uint32_t phase = control.state(local).phase.load(std::memory_order_acquire);
  return static_cast<RankPhase>(phase) == RankPhase::kLeft;
}

bool Job::IsAlive(uint32_t local) const {
  if (!share.pidfds[local]) return true;
  pollfd watched{share.pidfds[local]->get(), POLLIN, 0};
  return ::poll(&watched, 1, 0) <= 0;
}

LockWatch Job::lock_watch() const {
  return {[this](uint32_t local) { return IsAlive(local); },
          [this] {
            if (watch_peers) watch_peers();
          }};
}

void Job::RingAll(Urgency urgency) const {
  for (size_t l = 0; l < share.ranks.size(); ++l) doorbells.Ring(static_cast<int>(l), urgency);
}

}  // namespace horoacc
