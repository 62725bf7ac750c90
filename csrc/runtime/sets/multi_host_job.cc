#include "runtime/sets/multi_host_job.h"

#include <utility>

#include "negotiate/control_segment/control_segment.h"
#include "transport/data/shm/shm_data.h"

namespace horoacc {
namespace {

size_t DirectoryOffset(size_t local_ranks) {
  return WholePages(ControlSegment::BytesFor(static_cast<uint32_t>(local_ranks)) +
                    ShmDataControlBytes(local_ranks));
}

JobChannel::Surroundings ChannelOf(const MultiHostJob::Surroundings& around,
                                   RankDirectory& directory) {
  const Doorbells& doorbells = *around.doorbells;
  const int locals = static_cast<int>(around.share->ranks.size());
  const int own = around.share->local_rank;
  const auto ring_host = [&doorbells, locals] {
    for (int local = 0; local < locals; ++local) doorbells.Ring(local, Urgency::kWork);
  };
  directory.OnWanted(ring_host);
  return {.rank = around.rank,
          .locals = around.share->ranks,
          .mux = around.mux,
          .directory = &directory,
          .aborted = around.aborted,
          .stack = around.stack,
          .reading = around.reading,
          .ring_host = ring_host,
          .wake_coordinator = [&doorbells, own] { doorbells.WakeCoordinator(own); }};
}

}  // namespace

size_t MultiHostParts::ControlBytes(size_t local_ranks, size_t ranks) {
  return DirectoryOffset(local_ranks) + RankDirectory::BytesFor(ranks) -
         ControlSegment::BytesFor(static_cast<uint32_t>(local_ranks));
}

void MultiHostParts::Place(const HostShare& share) {
  const size_t locals = share.ranks.size();
  shm_offset = ControlSegment::BytesFor(static_cast<uint32_t>(locals));
  directory = std::make_shared<RankDirectory>(share.control.data() + DirectoryOffset(locals),
                                              host_of.size());
}

MultiHostJob::MultiHostJob(MultiHostParts& parts, const Surroundings& surroundings)
    : directory_(std::move(parts.directory)),
      sockets_(std::move(parts.sockets)),
      channel_(std::move(parts.host_of), ChannelOf(surroundings, *directory_)) {}

Result<std::unique_ptr<MultiHostJob>> MultiHostJob::Make(MultiHostParts parts,
                                                         const Surroundings& around) {
  std::unique_ptr<MultiHostJob> job(new MultiHostJob(parts, around));
  const HostShare& share = *around.share;
  std::vector<std::unique_ptr<DataLinks>> kinds;
  kinds.push_back(std::move(parts.across));
  if (share.ranks.size() > 1) {
    HA_ASSIGN(auto inside, MakeShmDataLinks({.share = &share,
                                             .control = share.control.data() + parts.shm_offset,
                                             .arena = around.arena,
                                             .doorbells = around.doorbells,
                                             .has_left = around.has_left}));
    kinds.push_back(std::move(inside));
  }
  const std::vector<int>& host_of = job->channel_.host_of();
  std::vector<int> kind_of;
  for (const int host : host_of) kind_of.push_back(host == host_of[around.rank] ? 1 : 0);
  kind_of[around.rank] = -1;
  HA_ASSIGN(job->links_, MixDataLinks(std::move(kinds), std::move(kind_of)));
  return job;
}

Result<bool> MultiHostJob::Progress() {
  if (!links_) return false;
  channel_.Progress();
  Result<bool> moved = links_->Progress();
  if (!moved.ok()) return std::move(moved.error()).Within("the links between ranks");
  return moved;
}

}  // namespace horoacc
