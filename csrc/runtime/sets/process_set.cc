#include "runtime/sets/process_set.h"

#include "negotiate/control_segment/segment_controller.h"
#include "negotiate/tree/tree_controller.h"
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

void AddOneHost(Job& job, ProcessSet& set) {
  SetContext& context = set.context;
  std::vector<uint32_t> locals;
  for (const int rank : set.ranks) {
    if (rank == job.rank()) context.me = static_cast<uint32_t>(locals.size());
    context.present.push_back(static_cast<uint32_t>(locals.size()));
    locals.push_back(job.LocalOf(rank));
    context.memory.push_back(job.share.memory[locals.back()].data());
  }
  context.ranks = static_cast<uint32_t>(set.ranks.size());
  context.window_depth = kWindowDepth;
  context.faults = job.faults.get();
  context.window_bytes = WindowBytes(job.settings);
  context.ring_others = [&job, locals](bool work) {
    for (const uint32_t local : locals) {
      if (static_cast<int>(local) == job.local_rank()) continue;
      job.doorbells.Ring(static_cast<int>(local), work ? Urgency::kWork : Urgency::kQuiet);
    }
  };
  set.control = std::make_unique<SetSegment>(job.control, set.place, std::move(locals), context.me,
                                             [&job](uint32_t local) { return job.IsAlive(local); });
  if (job.mux) {
    set.controller = std::make_unique<TreeController>(*job.mux, set.id, *set.control, context,
                                                      job.doorbells, job.settings, set.ranks);
  } else {
    set.controller = std::make_unique<SegmentController>(*set.control, context, job.doorbells,
                                                         job.settings, set.ranks);
  }
}

// Of the control segment only this rank's own part is used, and by it alone.
void AddSeveralHosts(Job& job, ProcessSet& set) {
  SetContext& context = set.context;
  context.ranks = 1;
  context.present = {0};
  context.memory = {job.multi_host->memory()};
  context.ring_others = [&job](bool) { job.RingOwn(Urgency::kWork); };
  set.control =
      std::make_unique<SetSegment>(job.multi_host->control(), set.place, std::vector<uint32_t>{0},
                                   0, [](uint32_t) { return true; });
  auto controller = std::make_unique<MultiHostController>(
      *job.mux,
      MultiHostController::Place{
          set.id, set.ranks, job.multi_host->host_of(), job.rank(), job.local_rank(),
          [&job](int rank) { return job.multi_host->HasLeft(rank); }, job.faults.get()},
      *set.control, job.doorbells, job.settings);
  set.multi_host_controller = controller.get();
  set.controller = std::move(controller);
  const auto member = std::ranges::find(set.ranks, job.rank());
  if (member == set.ranks.end()) return;
  set.multi_host = std::make_unique<MultiHostSet>(job.multi_host->host_of(), set.ranks,
                                                  static_cast<uint32_t>(member - set.ranks.begin()),
                                                  job.measured);
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
  if (job.multi_host) {
    AddSeveralHosts(job, *set);
  } else {
    AddOneHost(job, *set);
  }
  return set;
}

std::optional<Attendance> ProcessSet::AttendanceOf(const CollectiveEntry* collective) const {
  std::optional<TensorKey> key;
  if (collective) key = TensorKey{collective->id, collective->generation};
  if (multi_host_controller) {
    Result<std::optional<Attendance>> attendance = multi_host_controller->WhoHas(key);
    return attendance.ok() ? std::move(attendance).value() : std::nullopt;
  }
  Attendance attendance;
  for (uint32_t r = 0; r < context.ranks; ++r) {
    const bool has_it = key && control->HasSubmitted(r, *key);
    if (!has_it && control->HasJoined(r)) continue;  // no rank waits for it
    (has_it ? attendance.ready : attendance.missing).push_back(ranks[r]);
  }
  return attendance;
}

Status ProcessSet::EndWith(SetEnd end) const {
  const SetSegment::Guard guard(*control);
  HA_TRY(Status(guard.status()));
  SetEnd none;
  control->header().end.compare_exchange_strong(none, end);
  return {};
}

}  // namespace horoacc
