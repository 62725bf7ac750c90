#include "runtime/sets/process_set.h"

#include "negotiate/control_segment/segment_controller.h"
#include "negotiate/multi_host/multi_host_controller.h"
#include "runtime/job/job.h"

namespace horoacc {
namespace {

constexpr uint64_t kWindowRingBytes = 1 << 20;  // what one rank's window ring takes of the L3 cache
constexpr uint32_t kWindowDepth = 4;

uint64_t WindowBytes(const Settings& settings) {
  const uint64_t automatic =
      std::clamp<uint64_t>(kWindowRingBytes / kWindowDepth, 64 << 10, 1 << 20);
  const uint64_t bytes = settings.window_bytes > 0 ? settings.window_bytes : automatic;
  return std::max<uint64_t>(bytes / 4096 * 4096, 4096);
}

// Of the members on this host. Gives the local rank of each.
std::vector<uint32_t> FillContext(Job& job, const ProcessSet& set, SetContext& context) {
  std::vector<uint32_t> locals;
  for (const int rank : set.ranks) {
    const uint32_t local = job.LocalOf(rank);
    if (local == job.share.ranks.size()) continue;
    if (rank == job.rank()) context.me = static_cast<uint32_t>(locals.size());
    context.present.push_back(static_cast<uint32_t>(locals.size()));
    context.memory.push_back(job.share.memory[local].data());
    locals.push_back(local);
  }
  context.ranks = static_cast<uint32_t>(locals.size());
  context.window_depth = kWindowDepth;
  context.faults = job.faults.get();
  context.window_bytes = WindowBytes(job.settings);
  context.ring_others = [&job, locals](bool work) {
    for (const uint32_t local : locals) {
      if (static_cast<int>(local) == job.local_rank()) continue;
      job.doorbells.Ring(static_cast<int>(local), work ? Urgency::kWork : Urgency::kQuiet);
    }
  };
  return locals;
}

void AddOtherHosts(Job& job, ProcessSet& set) {
  const std::vector<int>& host_of = job.multi_host->channel().host_of();
  const auto me =
      static_cast<uint32_t>(std::ranges::find(set.ranks, job.rank()) - set.ranks.begin());
  std::vector<int> hosts;
  for (const int rank : set.ranks) hosts.push_back(host_of[rank]);
  set.multi_host =
      std::make_unique<MultiHostSet>(host_of, set.ranks, me, job.settings, job.measured);
  if (set.context.me == 0) set.queue.led = &job.led_calls;
  set.controller = std::make_unique<MultiHostController>(
      *job.mux,
      Leader::Place{set.id, set.ranks, TreeOver(hosts, me), job.settings.fusion_threshold,
                    set.multi_host->composes(), set.multi_host->grants(),
                    job.settings.gpu_mode == GpuMode::kNccl, job.faults.get()},
      *set.control, set.context, job.doorbells, set.multi_host->eager(),
      NoteMemory{
          [&job](size_t bytes) { return static_cast<std::byte*>(job.blocks.Allocate(bytes)); },
          [&job](void* block) { job.blocks.Free(block); }});
}

}  // namespace

std::unique_ptr<ProcessSet> MakeProcessSet(Job& job, uint32_t id, uint32_t place,
                                           std::vector<int> ranks) {
  auto set = std::make_unique<ProcessSet>();
  set->id = id;
  set->place = place;
  set->ranks = std::move(ranks);
  set->context.staging = job.arena.get();
  set->context.free_staging = [&job](void* block) { job.blocks.Free(block); };
  if (!set->Has(job.rank())) return set;  // of such a set only its ranks are looked at
  std::vector<uint32_t> locals = FillContext(job, *set, set->context);
  const bool one_host = locals.size() == set->ranks.size();
  set->control = std::make_unique<SetSegment>(job.control, place, std::move(locals),
                                              set->context.me, job.lock_watch());
  if (one_host) {
    set->controller = std::make_unique<SegmentController>(*set->control, set->context,
                                                          job.doorbells, job.tuned, set->ranks);
  } else {
    AddOtherHosts(job, *set);
  }
  return set;
}

std::optional<Attendance> ProcessSet::AttendanceOf(const CollectiveEntry* collective) const {
  std::optional<TensorKey> key;
  if (collective) key = TensorKey{collective->id, collective->generation};
  Result<std::optional<Attendance>> attendance = controller->WhoHas(key);
  return attendance.ok() ? std::move(attendance).value() : std::nullopt;
}

}  // namespace horoacc
