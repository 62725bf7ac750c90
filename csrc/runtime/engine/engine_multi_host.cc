// The engine of a job whose ranks do not all share memory: sets, decisions and watching over links.
#include <algorithm>

#include "negotiate/multi_host/eager.h"
#include "runtime/engine/assemble_exchange.h"
#include "runtime/engine/engine.h"
#include "schedule/select.h"
#include "transport/control/faulty_links.h"

namespace horoacc {

Status Engine::StartMultiHost(MultiHostParts parts) {
  HA_TRY(CheckForced(settings_));
  HA_ASSIGN(schedule::MeasuredTable table,
            schedule::MeasuredTable::Parse(settings_.selection_table));
  measured_ = std::make_shared<const schedule::MeasuredTable>(std::move(table));
  MultiHostJob::Surroundings around;
  around.rank = placement_.rank;
  around.share = &share_;
  around.arena = arena_.get();
  around.doorbells = &doorbells_;
  around.mux = mux_.get();
  around.has_left = [this](int local) {
    return static_cast<RankPhase>(control_.state(static_cast<uint32_t>(local)).phase.load()) ==
           RankPhase::kLeft;
  };
  around.stack = [this] { return MainStackOf(stacks_.Take()).substr(0, kStackText); };
  parts.across = WithFaults(std::move(parts.across), *faults_);
  around.aborted = [this](const Error& error) { AbortHere(error); };
  HA_ASSIGN(multi_host_,
            MultiHostJob::Make(std::move(parts), std::move(around), settings_.fusion_threshold));
  return {};
}

// Of the control segment only this rank's own part is used, and by it alone.
std::unique_ptr<ProcessSet> Engine::MakeMultiHostSet(uint32_t id, uint32_t place,
                                                     std::vector<int> ranks) {
  auto set = std::make_unique<ProcessSet>();
  set->id = id;
  set->place = place;
  set->ranks = std::move(ranks);
  SetContext& context = set->context;
  context.ranks = 1;
  context.present = {0};
  context.memory = {multi_host_->memory()};
  context.staging = arena_.get();
  context.free_staging = [this](void* block) { FreeShared(block); };
  context.ring_others = [this](bool) { doorbells_.Ring(share_.local_rank, Urgency::kWork); };
  set->control = std::make_unique<SetSegment>(
      multi_host_->control(), place, std::vector<uint32_t>{0}, 0, [](uint32_t) { return true; });
  auto controller = std::make_unique<MultiHostController>(
      *mux_,
      MultiHostController::Place{
          id, set->ranks, multi_host_->host_of(), placement_.rank, share_.local_rank,
          [this](int rank) { return multi_host_->HasLeft(rank); }, faults_.get()},
      *set->control, doorbells_, settings_);
  set->multi_host_controller = controller.get();
  set->controller = std::move(controller);
  const auto member = std::ranges::find(set->ranks, placement_.rank);
  if (member != set->ranks.end()) {
    set->multi_host = std::make_unique<MultiHostSet>(
        multi_host_->host_of(), set->ranks, static_cast<uint32_t>(member - set->ranks.begin()),
        measured_);
  }
  return set;
}

namespace {

/// Whether the root has told of every rank what this call needs to know.
bool HasFactsOf(const Request& request, const CallFacts& facts, size_t ranks) {
  const auto counts = [](const std::vector<int64_t>& values, size_t expected) {
    return values.size() == expected &&
           std::ranges::all_of(values, [](int64_t value) { return value >= 0; });
  };
  if (request.collective == Collective::kAllgather)
    return counts(facts.rows, request.tensors.size() * ranks);
  if (request.collective == Collective::kAlltoall) return counts(facts.splits, ranks * ranks);
  return true;
}

}  // namespace

Status Engine::BeginMultiHost(ProcessSet& set, std::unique_ptr<Running> running) {
  const Decision& decision = running->decision;
  const uint32_t ranks = set.multi_host->size();
  std::vector<MultiHostRun::Call> calls;
  for (size_t k = 0; k < decision.facts.size(); ++k) {
    const CallFacts& facts = decision.facts[k];
    Entry* const entry = k < running->entries.size() ? running->entries[k].get() : nullptr;
    if (entry && !HasFactsOf(entry->request, facts, ranks)) {
      return MakeError(ErrorKind::kSystem,
                       "a decision lacks what '" + entry->display_name + "' needs", set.ranks[0]);
    }
    if (entry) {
      HA_TRY(PrepareOutputs(
          {.ranks = set.ranks,
           .me = set.multi_host->me(),
           .rows = [&](size_t t, uint32_t r) { return facts.rows[t * ranks + r]; },
           .rows_between = [&](uint32_t from,
                               uint32_t to) { return facts.splits[from * ranks + to]; }},
          *entry));
    }
    calls.push_back({entry ? &entry->request : &facts.request, entry, &facts});
  }
  uint64_t bytes = 0;
  for (const MultiHostRun::Call& call : calls) {
    for (const TensorMeta& tensor : call.request->tensors) bytes += tensor.bytes();
  }
  std::string_view how = "none";
  if (decision.done()) {
    for (size_t k = 0; k < running->entries.size(); ++k) {
      if (decision.facts[k].result.empty()) continue;
      how = "eager";
      std::vector<std::byte*> outputs;
      for (EntryTensor& tensor : running->entries[k]->tensors) outputs.push_back(tensor.output);
      UnpackTensors(running->entries[k]->request, decision.facts[k].result, outputs);
    }
  } else {
    MultiHostRun::Surroundings around;
    around.links = &multi_host_->links();
    around.memory = {arena_.get(), [this](void* block) { FreeShared(block); }};
    around.settings = &settings_;
    around.set = set.id;
    const bool flows = std::ranges::any_of(
        running->entries, [&](const auto& entry) { return IsPipelined(entry->request); });
    if (flows) around.flow = PipelineOf(calls);
    HA_ASSIGN(auto run, MultiHostRun::Make(std::move(around), *set.multi_host, calls));
    how = run->algorithm();
    running->execution = std::move(run);
  }
  const bool reduces = !calls.empty() && calls[0].request->collective == Collective::kAllreduce;
  if (reduces) counters_.buckets.fetch_add(1, std::memory_order_relaxed);
  if (reduces || !decision.done()) {
    for (const auto& entry : running->entries) {
      events_.Emit(Phase::kExecute, set.id, entry->handle, set.buckets_run, bytes,
                   entry->display_name, how);
    }
  }
  set.current = std::move(running);
  if (!set.current->execution) return End(set, std::move(set.current));
  return {};
}

// Who has submitted a call that waits here, and who keeps it waiting, as far as it is known.
std::optional<Attendance> Engine::AttendanceOf(const ProcessSet& set, const Entry& entry) const {
  const bool join = entry.request.collective == Collective::kJoin;
  if (set.multi_host_controller) {
    const auto key = join ? std::nullopt : std::optional(TensorKey{entry.id, entry.generation});
    Result<std::optional<Attendance>> attendance = set.multi_host_controller->WhoHas(key);
    return attendance.ok() ? std::move(attendance).value() : std::nullopt;
  }
  Attendance attendance;
  for (uint32_t r = 0; r < set.context.ranks; ++r) {
    const bool has_it = !join && set.control->HasSubmitted(r, {entry.id, entry.generation});
    if (!has_it && set.control->HasJoined(r)) continue;  // nobody waits for it
    (has_it ? attendance.ready : attendance.missing).push_back(set.ranks[r]);
  }
  return attendance;
}

}  // namespace horoacc
