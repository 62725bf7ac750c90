#include "runtime/engine/engine.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/utsname.h>

#include <algorithm>
#include <sstream>
#include <system_error>

#include "base/clock.h"
#include "negotiate/control_segment/segment_controller.h"
#include "runtime/engine/agreed_settings.h"
#include "runtime/engine/cores.h"
#include "transport/control/faulty_links.h"

namespace horoacc {
namespace {

constexpr int64_t kSpin = 50 * kMicrosecond;
constexpr uint64_t kWindowRingBytes = 1 << 20;  // what one rank's window ring takes of the L3 cache
constexpr uint32_t kWindowDepth = 4;

std::string HostName() {
  utsname names{};
  return uname(&names) == 0 ? names.nodename : "localhost";
}

// Lets the calling thread run on one core only; an errno if that core is not to be had.
int PinToCore(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  return pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

}  // namespace

Engine::Engine(Settings settings, EngineParts parts)
    : settings_(std::move(settings)),
      placement_(parts.placement),
      log_(placement_.rank, settings_.log_level, settings_.log_hide_time),
      keep_alive_(std::move(parts.keep_alive)),
      mpi_(std::move(parts.mpi)),
      bootstrap_(std::move(parts.bootstrap)),
      share_(std::move(parts.share)),
      links_(std::move(parts.links)),
      control_(share_, settings_.fusion_threshold),
      doorbells_(control_.doorbells(), share_.wake),
      multi_host_parts_(std::move(parts.multi_host)),
      faults_(parts.faults ? std::move(parts.faults)
                           : std::make_shared<FaultPoints>(settings_.fault, placement_.rank)),
      events_(settings_.flight_events),
      tickets_(placement_.size),
      gpus_(settings_.cuda_plugin, {[this](size_t bytes) { return AllocateShared(bytes); },
                                    [this](void* memory) { FreeShared(memory); }}) {
  if (links_) links_ = WithFaults(std::move(links_), *faults_);
  if (links_) {
    mux_ = std::make_unique<ControlMux>(*links_, [this](int rank) {
      if (multi_host_) return multi_host_->HasLeft(rank);
      const auto local =
          static_cast<uint32_t>(std::ranges::find(share_.ranks, rank) - share_.ranks.begin());
      return static_cast<RankPhase>(control_.state(local).phase.load()) == RankPhase::kLeft;
    });
  }
  const Segment& own = share_.memory[share_.local_rank];
  arena_ = std::make_shared<Arena>(own.data(), own.size(), own.fd(), 0);
  messages_ = MakeMessageExchange();
}

Result<std::unique_ptr<Engine>> Engine::Create(Settings settings, EngineParts parts) {
  const int64_t deadline = NowNs() + FromSeconds(settings.start_timeout_seconds);
  HA_ASSIGN(Settings agreed, AgreeOnSettings(std::move(settings), *parts.bootstrap, deadline));
  std::unique_ptr<Engine> engine(new Engine(std::move(agreed), std::move(parts)));
  HA_TRY(engine->Start());
  return engine;
}

Status Engine::Start() {
  const std::vector<int>& cores = settings_.thread_affinity;
  const int locals = std::max(placement_.local_size, placement_.local_rank + 1);
  if (!cores.empty() && cores.size() < static_cast<size_t>(locals)) {
    return MakeError(ErrorKind::kConfig, "setting 'thread_affinity' names " +
                                             std::to_string(cores.size()) + " cores for " +
                                             std::to_string(locals) + " local ranks");
  }
  const int64_t deadline = NowNs() + FromSeconds(settings_.start_timeout_seconds);
  if (multi_host_parts_)
    HA_TRY(StartMultiHost(std::move(*std::exchange(multi_host_parts_, std::nullopt))));
  std::vector<int> link_fds;
  if (links_ && links_->WaitFd() >= 0) link_fds.push_back(links_->WaitFd());
  if (multi_host_ && multi_host_->links().WaitFd() >= 0)
    link_fds.push_back(multi_host_->links().WaitFd());
  must_poll_ = (links_ && links_->WaitFd() < 0) || (multi_host_ && multi_host_->links().MustPoll());
  if (!link_fds.empty()) HA_TRY(doorbells_.WatchLinks(share_.local_rank, link_fds));
  control_.state(share_.local_rank).blocked_on.store(kNotBlocked);
  control_.state(share_.local_rank).phase.store(static_cast<uint32_t>(RankPhase::kPresent));
  Introduce();
  heartbeats_ = std::make_unique<HeartbeatMonitor>(
      share_.ranks.size() + (multi_host_ ? placement_.size : 0),
      HeartbeatMonitor::Limits{FromSeconds(settings_.silence_warning_seconds),
                               FromSeconds(settings_.hang_limit_seconds)});
  std::vector<int> everybody(placement_.size);
  for (int rank = 0; rank < placement_.size; ++rank) everybody[rank] = rank;
  sets_.push_back(MakeSet(0, std::move(everybody)));
  HA_FAULT(*faults_, kBootstrap);
  // Nobody submits before everybody is there.
  HA_ASSIGN(const std::vector<std::string> allowed,
            bootstrap_->AllGather(AllowedCores(), deadline));
  HA_TRY(CheckEpochs());
  spin_ns_ = SpinTime(allowed);
  HA_ASSIGN(hosts_, bootstrap_->AllGather(HostName(), deadline));
  if (!settings_.timeline.empty()) {
    HA_TRY(StartTimeline(settings_.timeline, settings_.timeline_mark_cycles));
  }
  coordinator_ = std::jthread([this](const std::stop_token& stop) {
    pthread_setname_np(pthread_self(), "horoacc");
    if (!settings_.thread_affinity.empty()) {
      const int core = settings_.thread_affinity[placement_.local_rank];
      if (const int refused = PinToCore(core); refused != 0) {
        log_.Write(LogLevel::kWarning,
                   "setting 'thread_affinity': the engine thread cannot run on core " +
                       std::to_string(core) + ": " + std::generic_category().message(refused));
      }
    }
    Coordinate(stop);
  });
  return {};
}

// Who spins while a peer waits for the core delays what it waits for.
int64_t Engine::SpinTime(std::span<const std::string> allowed) const {
  if (settings_.spin_microseconds >= 0) return settings_.spin_microseconds * kMicrosecond;
  std::vector<std::string> here;
  for (const int rank : share_.ranks) here.push_back(allowed[rank]);
  return static_cast<int>(here.size()) <= CountCores(here) ? kSpin : 0;
}

std::unique_ptr<ProcessSet> Engine::MakeSet(uint32_t id, std::vector<int> ranks) {
  return MakeSet(id, SlotOf(id), std::move(ranks));
}

std::unique_ptr<ProcessSet> Engine::MakeSet(uint32_t id, uint32_t place, std::vector<int> ranks) {
  if (multi_host_) return MakeMultiHostSet(id, place, std::move(ranks));
  auto set = std::make_unique<ProcessSet>();
  set->id = id;
  set->place = place;
  set->ranks = std::move(ranks);
  std::vector<uint32_t> locals;
  SetContext& context = set->context;
  for (const int rank : set->ranks) {
    const auto local =
        static_cast<uint32_t>(std::ranges::find(share_.ranks, rank) - share_.ranks.begin());
    if (rank == placement_.rank) context.me = static_cast<uint32_t>(locals.size());
    locals.push_back(local);
    context.present.push_back(static_cast<uint32_t>(locals.size()) - 1);
    context.memory.push_back(share_.memory[local].data());
  }
  context.ranks = static_cast<uint32_t>(set->ranks.size());
  context.staging = arena_.get();
  context.free_staging = [this](void* block) { FreeShared(block); };
  context.window_depth = kWindowDepth;
  context.faults = faults_.get();
  const uint64_t automatic =
      std::clamp<uint64_t>(kWindowRingBytes / kWindowDepth, 64 << 10, 1 << 20);
  context.window_bytes =
      (settings_.window_bytes > 0 ? settings_.window_bytes : automatic) / 4096 * 4096;
  context.window_bytes = std::max<uint64_t>(context.window_bytes, 4096);
  const std::vector<uint32_t> members = locals;
  context.ring_others = [this, members](bool work) {
    for (const uint32_t local : members) {
      if (static_cast<int>(local) == share_.local_rank) continue;
      doorbells_.Ring(static_cast<int>(local), work ? Urgency::kWork : Urgency::kQuiet);
    }
  };
  const auto alive = [this](uint32_t local) {
    if (!share_.pidfds[local]) return true;
    pollfd watched{share_.pidfds[local]->get(), POLLIN, 0};
    return ::poll(&watched, 1, 0) <= 0;
  };
  set->control =
      std::make_unique<SetSegment>(control_, place, std::move(locals), context.me, alive);
  if (mux_) {
    set->controller = std::make_unique<TreeController>(*mux_, id, *set->control, context,
                                                       doorbells_, settings_, set->ranks);
  } else {
    set->controller = std::make_unique<SegmentController>(*set->control, context, doorbells_,
                                                          settings_, set->ranks);
  }
  return set;
}

Engine::~Engine() { (void)Shutdown(); }

std::shared_ptr<ProcessSet> Engine::FindSet(uint32_t id) const {
  std::lock_guard lock(sets_mutex_);
  if (multi_host_ && IsGroup(id)) {  // its place is this rank's own choice
    const auto found =
        std::ranges::find_if(sets_, [id](const auto& set) { return set && set->id == id; });
    return found != sets_.end() ? *found : nullptr;
  }
  const uint32_t slot = SlotOf(id);
  return slot < sets_.size() && sets_[slot] && sets_[slot]->id == id ? sets_[slot] : nullptr;
}

std::vector<std::shared_ptr<ProcessSet>> Engine::Sets() const {
  std::lock_guard lock(sets_mutex_);
  return SetsOfThisRank();
}

std::vector<std::shared_ptr<ProcessSet>> Engine::SetsOfThisRank() const {
  std::vector<std::shared_ptr<ProcessSet>> sets;
  for (const auto& set : sets_) {
    if (set && std::ranges::find(set->ranks, placement_.rank) != set->ranks.end())
      sets.push_back(set);
  }
  return sets;
}

std::vector<std::shared_ptr<ProcessSet>> Engine::DrivenSets() {
  std::vector<std::shared_ptr<ProcessSet>> sets;
  std::vector<std::shared_ptr<ProcessSet>> removed;
  {
    std::lock_guard lock(sets_mutex_);
    sets = SetsOfThisRank();
    removed = removed_sets_;
  }
  for (const auto& set : removed) {
    // Two are `removed` and `removed_sets_`. Whoever else holds it may be about to look at its
    // place on the control segment, which must not be another set's by then; new holders do not
    // come.
    const bool held = set.use_count() > 2;
    std::atomic_thread_fence(std::memory_order_acquire);
    if (held || !set->done()) {
      sets.push_back(set);
      continue;
    }
    set->gpu_group.reset();  // its words on the control segment are pinned
    if (IsGroup(set->id)) ReturnGroup(set->id);
    std::lock_guard lock(sets_mutex_);
    std::erase(removed_sets_, set);
  }
  return sets;
}

std::vector<uint32_t> Engine::ProcessSetIds() const {
  std::lock_guard lock(sets_mutex_);
  std::vector<uint32_t> ids;
  for (const auto& set : sets_) {
    if (set && !IsGroup(set->id)) ids.push_back(set->id);
  }
  return ids;
}

std::optional<std::vector<int>> Engine::ProcessSetRanks(uint32_t id) const {
  const auto set = FindSet(id);
  if (!set) return std::nullopt;
  return set->ranks;
}

void Engine::Release(uint64_t handle) {
  const std::shared_ptr<Entry> entry = handles_.Remove(handle);
  if (!entry) return;
  events_.Emit(Phase::kReleased, entry->process_set, handle, 0, 0, entry->display_name);
  if (entry->device && entry->complete.load(std::memory_order_acquire)) entry->device->Forget();
  const std::shared_ptr<ProcessSet> set = FindSet(entry->process_set);
  if (!set) return;
  std::lock_guard lock(set->queue.mutex);
  entry->released = true;
  if (entry->reservation && entry->reservation->held_by == handle) entry->reservation->held_by = 0;
}

// One rank tells the story of the job, as Horovod's timeline does: all ranks may call this with
// the same path.
Status Engine::StartTimeline(const std::string& path, bool mark_cycles) {
  if (placement_.rank != 0) return {};
  std::lock_guard lock(timeline_mutex_);
  if (timeline_) return MakeError(ErrorKind::kInvalid, "a timeline is being written already");
  HA_ASSIGN(timeline_, Timeline::Open(path, placement_.rank, mark_cycles));
  events_.Attach(timeline_);
  return {};
}

Status Engine::StopTimeline() {
  std::lock_guard lock(timeline_mutex_);
  if (!timeline_) return {};
  events_.Detach(timeline_.get());
  return std::exchange(timeline_, nullptr)->Close();
}

std::string Engine::CounterText() const {
  std::ostringstream text;
  const auto line = [&](const char* name, uint64_t value) { text << name << '=' << value << '\n'; };
  const auto counter = [&](const char* name, const std::atomic<uint64_t>& value) {
    line(name, value.load(std::memory_order_relaxed));
  };
  counter("submissions", counters_.submissions);
  counter("decisions", counters_.decisions);
  counter("buckets", counters_.buckets);
  counter("arena_bytes", counters_.arena_bytes);
  counter("staged_bytes", counters_.staged_bytes);
  counter("window_bytes", counters_.window_bytes);
  counter("gpu_bytes", counters_.gpu_bytes);
  counter("gpu_leader_bytes", counters_.gpu_leader_bytes);
  counter("gpu_stream_bytes", counters_.gpu_stream_bytes);
  counter("gpu_kernel_bytes", counters_.gpu_kernel_bytes);
  counter("gpu_nccl_bytes", counters_.gpu_nccl_bytes);
  counter("gpu_moved_bytes", counters_.gpu_moved_bytes);
  counter("last_arriver", counters_.last_arriver);
  counter("driven_waits", counters_.driven_waits);
  counter("coordinator_wakes", counters_.coordinator_wakes);
  const ControlMux::Sent sent = mux_ ? mux_->sent() : ControlMux::Sent{};
  line("control_messages", sent.messages);
  line("control_bytes", sent.bytes);
  const SocketCounters none;
  const SocketCounters& sockets = multi_host_ ? multi_host_->sockets() : none;
  counter("data_connections", sockets.connections);
  counter("data_send_calls", sockets.send_calls);
  counter("data_receive_calls", sockets.receive_calls);
  const ArenaStats stats = arena_->stats();
  line("arena_in_use", stats.bytes_in_use);
  line("arena_touched", stats.bytes_touched);
  return text.str();
}

}  // namespace horoacc
