#include "runtime/engine/engine.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "runtime/job/agreed_settings.h"
#include "runtime/job/cores.h"
#include "schedule/select.h"

namespace horoacc {
namespace {

constexpr int64_t kSpin = 50 * kMicrosecond;
constexpr int64_t kDrainLimit = 5 * kSecond;
// In a job on several hosts: for other ranks of the host to leave, and to tell other hosts of an
// abort.
constexpr int64_t kFarewellLimit = kSecond;
constexpr int64_t kAbortLimit = 3 * kSecond / 2;
constexpr std::chrono::microseconds kLookAgain(100);
constexpr std::chrono::milliseconds kLogLimit(200);  // for a reader of stderr at the end

// Spins only if every rank of the host has a core of its own: a thread that spins while a peer
// waits for the core delays that peer.
Result<int64_t> SpinTime(const Job& job, int64_t deadline_ns) {
  const auto of_host =
      [](const std::vector<std::string>& blobs) -> Result<std::vector<std::string>> {
    std::map<std::string, std::vector<std::string>> cores;  // by the host's lowest rank
    std::vector<std::string> hosts;
    for (const std::string& blob : blobs) {
      hosts.push_back(blob.substr(0, blob.find(':')));
      cores[hosts.back()].push_back(blob.substr(blob.find(':') + 1));
    }
    std::map<std::string, std::string> spins;
    for (const auto& [host, here] : cores)
      spins[host] = static_cast<int>(here.size()) <= CountCores(here) ? "yes" : "";
    for (std::string& host : hosts) host = spins[host];
    return hosts;
  };
  HA_ASSIGN(const std::string spins,
            job.bootstrap->Exchange(std::to_string(job.share.ranks[0]) + ':' + AllowedCores(), "",
                                    of_host, deadline_ns));
  if (job.settings.spin_microseconds >= 0) return job.settings.spin_microseconds * kMicrosecond;
  return spins.empty() ? 0 : kSpin;
}

Error Unknown(uint64_t handle) {
  return MakeError(ErrorKind::kInvalid, "unknown handle " + std::to_string(handle));
}

// Runs `body` on a caller's thread; an exception of the standard library aborts the job.
template <typename Body>
auto OrAbort(Failure& failure, Body body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::exception& thrown) {
    return failure.AbortThrown(thrown.what());
  }
}

}  // namespace

Engine::Engine(Settings settings, EngineParts parts)
    : job_(std::move(settings), std::move(parts)),
      messages_(job_, failure_, sets_, handles_, completion_, deadlines_),
      driver_({job_, failure_, sets_, devices_, completion_, messages_, deadlines_, telemetry_}),
      waits_(job_, failure_, sets_, completion_, driver_, {liveness_, stalls_, deadlines_}),
      coordinator_({job_,
                    failure_,
                    sets_,
                    plans_,
                    driver_,
                    stacks_,
                    telemetry_,
                    {liveness_, stalls_, deadlines_}}) {}

Engine::~Engine() { (void)Shutdown(); }

Result<std::unique_ptr<Engine>> Engine::Create(Settings settings, EngineParts parts) {
  const int64_t deadline = NowNs() + FromSeconds(settings.start_timeout_seconds);
  HA_ASSIGN(Settings agreed, AgreeOnSettings(std::move(settings), *parts.bootstrap, deadline));
  std::unique_ptr<Engine> engine(new Engine(std::move(agreed), std::move(parts)));
  HA_TRY(engine->Start());
  return engine;
}

Status Engine::Start() {
  const Settings& settings = job_.settings;
  const int locals = std::max(job_.placement.local_size, job_.placement.local_rank + 1);
  if (const size_t cores = settings.thread_affinity.size();
      cores > 0 && cores < static_cast<size_t>(locals)) {
    return MakeError(ErrorKind::kConfig, "setting 'thread_affinity' names " +
                                             std::to_string(cores) + " cores for " +
                                             std::to_string(locals) + " local ranks");
  }
  job_.reading = [this](const ReadingScope& scope) { return telemetry_.Reading(scope); };
  const int64_t deadline = NowNs() + FromSeconds(settings.start_timeout_seconds);
  if (job_.multi_host_parts)
    HA_TRY(job_.StartMultiHost([this](const Error& error) { failure_.AbortHere(error); }));
  HA_TRY(job_.WatchLinks());
  job_.own_state().blocked_on.store(kNotBlocked);
  job_.own_state().phase.store(static_cast<uint32_t>(RankPhase::kPresent));
  liveness_.Introduce();
  job_.watch_peers = [this] {
    job_.own_state().beat_ns.store(NowNs(), std::memory_order_release);
    liveness_.Look();
  };
  job_.plans_state = [this] { return plans_.State(); };
  std::vector<int> everybody(job_.placement.size);
  std::iota(everybody.begin(), everybody.end(), 0);
  sets_.Add(MakeProcessSet(job_, 0, 0, std::move(everybody)));
  HA_FAULT(*job_.faults, kBootstrap);
  // No rank submits before all ranks are there.
  HA_ASSIGN(job_.spin_ns, SpinTime(job_, deadline));
  HA_TRY(liveness_.CheckEpochs());
  if (!settings.timeline.empty())
    HA_TRY(telemetry_.StartTimeline(settings.timeline, settings.timeline_mark_cycles));
  HA_TRY(job_.callbacks.Start());
  HA_TRY(set_changes_.Start());
  return coordinator_.Start();
}

Result<uint64_t> Engine::Submit(Submission submission) {
  return OrAbort(failure_, [&]() -> Result<uint64_t> {
    if (submission.request.collective == Collective::kJoin)
      plans_.BeforeJoin(submission.process_set);
    return submitter_.Submit(std::move(submission));
  });
}

std::unique_ptr<LockedPlan> Engine::MakePlan(Submission call,
                                             const std::vector<std::string>& names) {
  auto plan = std::make_unique<LockedPlan>(
      LockedPlan::Surroundings{*this, job_.counters, job_.settings, job_.tuned, *job_.arena,
                               [this](LockedPlan* ended) { plans_.Remove(ended); }},
      std::move(call), names);
  plans_.Add(plan.get());
  return plan;
}

// Why the job cannot be tuned to these values; or "".
static std::string WhyNot(const Settings& settings, int ranks, const Tuned::Values& values) {
  // Memory for GPUs was measured out by the settings.
  const uint64_t most_alone = std::max(settings.gpu_chunk_bytes, settings.last_arriver_bytes);
  if (values.fusion_threshold > settings.fusion_threshold)
    return "fusion_threshold was " + std::to_string(settings.fusion_threshold);
  if (values.last_arriver_bytes > most_alone)
    return "at most " + std::to_string(most_alone) + " bytes of last_arriver_bytes are possible";
  if (values.way.algorithm == 0) return "";
  if (!IsPossible(values.way)) return "that is no algorithm of allreduces";
  const schedule::Algorithm& algorithm = schedule::Algorithms()[values.way.algorithm - 1];
  if (static_cast<uint32_t>(ranks) > algorithm.most_ranks) return "there are too many ranks for it";
  if (!ForcedAlgorithm(schedule::Goal::kAllreduce, settings).empty())
    return "the algorithm was set";
  return settings.reduction == "canonical" && !algorithm.in_rank_order
             ? "its sums have other bits, and reduction was canonical"
             : "";
}

Status Engine::Tune(const Tuned::Values& values, Tuned::Story story) {
  const std::string why_not = WhyNot(job_.settings, job_.placement.size, values);
  if (!why_not.empty()) {
    return MakeError(ErrorKind::kInvalid,
                     "this job cannot be tuned to fusion_threshold " +
                         std::to_string(values.fusion_threshold) + ", last_arriver_bytes " +
                         std::to_string(values.last_arriver_bytes) + " and algorithm " +
                         std::to_string(values.way.algorithm) + ": " + why_not);
  }
  return OrAbort(failure_, [&]() -> Status {
    if (job_.tuned.Change(values, std::move(story))) plans_.AfterTuning();
    return {};
  });
}

Result<uint64_t> Engine::SubmitMessage(uint32_t process_set, const Message& message,
                                       Submission::Buffers buffers, double limit_seconds,
                                       std::function<void()> done) {
  return OrAbort(failure_, [&]() -> Result<uint64_t> {
    HA_ASSIGN(const uint64_t handle,
              messages_.Submit(process_set, message, buffers, limit_seconds, std::move(done)));
    // A message to another host leaves with the call: maybe no thread drives for a while.
    if (message.sends && job_.LocalOf(message.peer) == job_.share.ranks.size()) driver_.LookOnce();
    return handle;
  });
}

Status Engine::LeaveGroup(uint32_t id) {
  const int64_t limit = NowNs() + kDrainLimit;
  // The news that this rank has left takes another way and ends what others receive from it.
  while (messages_.exchange().Unheard() && NowNs() < limit && !job_.aborted()) {
    driver_.LookOnce();
    std::this_thread::sleep_for(kLookAgain);
  }
  return groups_.Leave(id);
}

std::optional<bool> Engine::Poll(uint64_t handle) {
  const std::shared_ptr<Entry> entry = handles_.Find(handle);
  if (!entry) return std::nullopt;
  // After an exception the call is not complete yet: the next look at it ends it.
  (void)OrAbort(failure_, [&]() -> Status {
    (void)waits_.Poll(*entry);
    return {};
  });
  return entry->complete.load(std::memory_order_acquire);
}

Status Engine::Wait(uint64_t handle, int64_t deadline_ns) {
  const std::shared_ptr<Entry> entry = handles_.Find(handle);
  if (!entry) return Unknown(handle);
  return OrAbort(failure_, [&]() -> Status { return waits_.Wait(*entry, deadline_ns); });
}

Status Engine::WaitFor(uint64_t handle, double seconds) {
  const std::shared_ptr<Entry> entry = handles_.Find(handle);
  if (!entry) return Unknown(handle);
  return OrAbort(failure_, [&]() -> Status {
    // Of many calls that end together only the first one's caller looks at the clock.
    const bool complete = entry->complete.load(std::memory_order_acquire);
    return waits_.Wait(*entry, complete ? 0 : DeadlineIn(seconds));
  });
}

void Engine::Release(uint64_t handle) {
  const std::shared_ptr<Entry> entry = handles_.Remove(handle);
  if (!entry) return;
  job_.events.Emit(Phase::kReleased, entry->process_set, handle, 0, 0, entry->display_name);
  CollectiveEntry* const call = AsCollective(entry.get());
  if (!call) return;
  if (call->device && call->complete.load(std::memory_order_acquire)) call->device->Forget();
  const std::shared_ptr<ProcessSet> set = sets_.Find(entry->process_set);
  if (!set) return;
  std::lock_guard lock(set->queue.mutex);
  call->released = true;
  if (call->reservation && call->reservation->held_by == handle) call->reservation->held_by = 0;
}

Calls::Others Engine::OthersIn(uint32_t process_set, const std::string& name) const {
  const std::shared_ptr<ProcessSet> set = sets_.Find(process_set);
  if (!set || !set->control) return Others::kNothing;
  const auto arrivals_of = [&](uint32_t of) {
    return set->control->id(of).arrivals.load(std::memory_order_acquire);
  };
  std::optional<uint32_t> id;
  {
    const std::unique_lock lock(set->queue.mutex, std::try_to_lock);  // see StallWatch::Look
    if (!lock) return Others::kNothing;
    if (const NameRecord& record = set->queue.names.Find(name);
        record.known && arrivals_of(record.id).id_version() == record.id_version) {
      id = record.id;
    }
  }
  if (!id) id = set->control->Known(name);  // under the set's lock
  if (!id) return Others::kNothing;
  const Arrivals arrivals = arrivals_of(*id);
  if (arrivals.arrived() == 0) return Others::kNothing;
  for (uint32_t r = 0; r < set->context.ranks; ++r) {
    const Row& row = set->control->row(r, *id, arrivals.open());
    if (row.generation.load(std::memory_order_acquire) != arrivals.open()) continue;
    if (row.recurs == Recurs::kInPlan && row.error > 0) return Others::kRefused;
  }
  return Others::kSubmitted;
}

Status Engine::GiveUp(uint64_t handle, double seconds) {
  const std::shared_ptr<Entry> entry = handles_.Find(handle);
  if (!entry) return Unknown(handle);
  if (entry->complete.load(std::memory_order_acquire)) return entry->outcome;
  return OrAbort(failure_, [&]() -> Status { return deadlines_.GiveUp(entry, seconds); });
}

Status Engine::JoinStream(uint64_t handle, void* stream) {
  const std::shared_ptr<Entry> entry = handles_.Find(handle);
  if (!entry) return Unknown(handle);
  CollectiveEntry* const call = AsCollective(entry.get());
  if (!call || !call->device || !call->complete.load(std::memory_order_acquire)) return {};
  return call->device->Join(stream);
}

std::optional<std::vector<int>> Engine::ProcessSetRanks(uint32_t id) const {
  const auto set = sets_.Find(id);
  if (!set) return std::nullopt;
  return set->ranks;
}

Status Engine::Shutdown() {
  if (job_.stopping.exchange(true)) return {};
  plans_.Close();
  job_.RingOwn(Urgency::kQuiet);  // a caller that drives gives the lock back
  Doorbell& doorbell = job_.doorbells.doorbell(job_.local_rank());
  Status left;
  {
    Driver::Lock lock(driver_, Driver::Lock::Holder::kCoordinator);
    doorbell.driven.store(1, std::memory_order_seq_cst);
    left = OrAbort(failure_, [&] { return LeaveJob(lock); });
    lock->FailAll(MakeError(ErrorKind::kAborted, "the engine has been shut down"));
    if (job_.multi_host && !job_.aborted()) job_.multi_host->DropLinks();
    job_.own_state().phase.store(static_cast<uint32_t>(RankPhase::kLeft),
                                 std::memory_order_release);
    job_.RingAll(Urgency::kQuiet);
    doorbell.driven.store(0, std::memory_order_seq_cst);
  }
  Status joined = JoinThreads();
  ReleaseResources();
  job_.log.Flush(kLogLimit);
  return left.ok() ? joined : left;
}

Status Engine::LeaveJob(Driver::Lock& lock) {
  // Under each set's lock, so that no rank decides anything that needs this one afterwards. After
  // an abort no rank decides: one that has not seen it yet is to be told of it, not of who left
  // first.
  for (const auto& set : sets_.Own()) {
    if (!job_.aborted()) (void)set->controller->End(SetEnd::Left(job_.rank()));
  }
  job_.RingAll(Urgency::kWork);
  HA_FAULT(*job_.faults, kShutdown);
  // Calls that were decided before are carried out; the others end with kAborted.
  const int64_t limit = NowNs() + kDrainLimit;
  int64_t farewell_limit = NowNs() + kFarewellLimit;
  int64_t abort_limit = NowNs() + kAbortLimit;
  bool busy = true;
  bool departed = false;
  for (;;) {
    const uint32_t seen =
        job_.doorbells.doorbell(job_.local_rank()).count.load(std::memory_order_seq_cst);
    if (lock.Progress()) continue;
    busy = messages_.exchange().Gives();
    // The farewell takes another way than messages, and ends what others receive from this rank.
    bool unsent = job_.HasUnsent() || messages_.exchange().Unheard();
    for (const auto& set : sets_.Driven()) {
      busy |= set->runs() || !set->draining.empty() || !set->controller->Ended();
      unsent |= !set->controller->Released();
    }
    const int64_t now = NowNs();
    if (now > limit) {
      job_.log.Write(LogLevel::kWarning, "leaves the job without the others" + Unfinished());
      break;
    }
    if (job_.aborted()) {
      // Other hosts may still have to hear of it.
      if (!job_.multi_host || now > abort_limit ||
          (job_.multi_host->channel().AbortTold() && !job_.mux->HasUnsent()))
        break;
    } else if (departed) {
      if (now > farewell_limit || !job_.multi_host->channel().AwaitsFarewell()) break;
    } else if (!busy && !unsent) {
      if (!job_.multi_host) break;
      // Ranks of the host that leave now as well count on the one that speaks for them.
      JobChannel& channel = job_.multi_host->channel();
      if (now > farewell_limit || !channel.SpeaksForOthers()) {
        channel.Depart();
        departed = true;
        farewell_limit = now + kFarewellLimit;
        continue;
      }
    } else {
      farewell_limit = now + kFarewellLimit;
    }
    if (!job_.aborted()) abort_limit = now + kAbortLimit;
    job_.doorbells.SleepAsWaiter(job_.local_rank(), seen, 10 * kMillisecond);
    liveness_.Look();
  }
  if (job_.multi_host && !departed && !job_.aborted()) job_.multi_host->channel().Depart();
  if (busy && !job_.aborted()) {
    // Peers may still use this rank's memory: they must stop before it is given up.
    const std::string rank = "rank " + std::to_string(job_.rank());
    failure_.Abort(MakeError(ErrorKind::kTimeout, rank + " shut down in the middle of a collective",
                             job_.rank()));
  }
  return {};
}

std::string Engine::Unfinished() {
  std::string text;
  if (job_.HasUnsent()) text += "; some messages to other hosts are not sent";
  if (messages_.exchange().Unheard()) text += "; some messages are not received";
  for (const auto& set : sets_.Driven()) {
    const std::string name = "; process set " + std::to_string(set->id);
    if (set->runs() || !set->draining.empty()) text += name + " carries out a call";
    if (!set->controller->Ended()) text += name + " has no end";
    if (!set->controller->Released()) text += name + " is in use on other hosts";
  }
  return text;
}

Status Engine::Abandon() {
  if (job_.stopping.exchange(true)) return {};
  plans_.Close();
  job_.RingOwn(Urgency::kQuiet);  // a caller that drives gives the lock back
  {
    Driver::Lock lock(driver_, Driver::Lock::Holder::kCoordinator);
    lock->FailAll(MakeError(ErrorKind::kAborted, "the engine has been abandoned"));
    lock->Release();  // the others still decide calls of this rank, which has none any more
  }
  Status joined = JoinThreads();
  job_.log.Flush(kLogLimit);
  return joined;
}

Status Engine::JoinThreads() {
  readings_.Stop();
  coordinator_.Stop();
  set_changes_.Stop();
  job_.callbacks.Stop();
  completion_.WakeWaiters();
  return telemetry_.StopTimeline();
}

// The threads have been joined, and every call has ended. The object itself stays for as long as
// bindings may still ask it, one that uses MPI to the end of the process; a process that joins and
// leaves many times must not pay for each time. A caller that is on its way out may still look at
// the control segment, which reads as zeroes from now on, but drives nothing any more.
void Engine::ReleaseResources() {
  Driver::Lock lock(driver_, Driver::Lock::Holder::kCoordinator);
  lock->Release();
  ended_in_abort_ = job_.aborted();
  const std::vector<std::shared_ptr<ProcessSet>> sets = sets_.TakeAll();
  uint32_t places = 0;
  for (const auto& set : sets) {
    // A thread in the middle of a submission leaves it; a later one finds the failure.
    const std::lock_guard submitting(set->queue.mutex);
    for (const auto& [end, block] : set->kept_blocks) job_.blocks.Free(block);
    set->kept_blocks.clear();
    places = std::max(places, set->place + 1);
  }
  for (const auto& set : sets) set->gpu_group.reset();
  devices_.Close();
  job_.Release(places);
}

void Engine::AfterForkInChild() {
  job_.arena->AfterForkInChild();
  readings_.LeaveToParent();
  job_.share.life.reset();
  if (job_.links) job_.links->LeaveToParent();
  if (job_.multi_host) job_.multi_host->LeaveToParent();
}

Status Engine::FinalizeMpi() {
  if (!job_.mpi) return {};
  if (ended_in_abort_ || job_.aborted()) job_.mpi->Abandon();
  return job_.mpi->Finalize();
}

}  // namespace horoacc
