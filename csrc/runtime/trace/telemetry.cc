#include "runtime/trace/telemetry.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iomanip>
#include <limits>
#include <span>
#include <sstream>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "negotiate/disagreement.h"
#include "runtime/health/process_state.h"
#include "transport/net/fd.h"

namespace horoacc {
namespace {

constexpr ReadingScope kWholeRecord{true, std::numeric_limits<double>::infinity(),
                                    std::numeric_limits<uint32_t>::max(),
                                    std::numeric_limits<size_t>::max()};
constexpr int64_t kQueueLimit = 100 * kMillisecond;
constexpr std::chrono::milliseconds kTryAgain(1);

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') quoted += '\\';
    if (static_cast<unsigned char>(letter) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", letter);
      quoted += code;
    } else {
      quoted += letter;
    }
  }
  return quoted + "\"";
}

bool WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno != EINTR) return false;
    text.remove_prefix(static_cast<size_t>(std::max<ssize_t>(written, 0)));
  }
  return true;
}

std::string ListOf(std::span<const int> ranks) { return "[" + ListText(ranks) + "]"; }

const char* NameOfPhase(Phase phase) {
  switch (phase) {
    case Phase::kQueued:
      return "queued";
    case Phase::kNegotiated:
      return "agreed";
    case Phase::kExecute:
      return "begun";
    case Phase::kExecuted:
      return "done";
    case Phase::kReleased:
      return "released";
    case Phase::kError:
      return "failed";
  }
  return "";
}

constexpr std::pair<const char*, std::atomic<uint64_t> Counters::*> kUnlocks[] = {
    {"changed", &Counters::plan_unlocks_changed}, {"wait", &Counters::plan_unlocks_wait},
    {"join", &Counters::plan_unlocks_join},       {"refused", &Counters::plan_unlocks_refused},
    {"peer", &Counters::plan_unlocks_peer},       {"end", &Counters::plan_unlocks_end},
    {"tuned", &Counters::plan_unlocks_tuned},
};

double SecondsSince(int64_t then_ns, int64_t now_ns) {
  return static_cast<double>(now_ns - then_ns) / 1e9;
}

constexpr std::string_view kBetweenEvents = ",\n";
constexpr std::string_view kEndOfFlight = "]}\n";

std::string EventText(const FlightRing::Record& record, int64_t now_ns) {
  std::ostringstream text;
  text << std::setprecision(15) << "{\"age\":" << SecondsSince(record.time_ns, now_ns)
       << ",\"what\":\"" << NameOfPhase(record.phase) << "\",\"set\":" << record.process_set
       << ",\"collective\":" << record.bucket << ",\"tensor\":" << Quoted(record.tensor)
       << ",\"detail\":" << Quoted(record.detail);
  if (record.phase == Phase::kQueued) text << ",\"bytes\":" << record.bytes;
  if (record.type) text << ",\"type\":\"" << NameOf(*record.type) << '"';
  if (record.waited_ns > 0) text << ",\"waited\":" << SecondsSince(0, record.waited_ns);
  text << "}";
  return std::move(text).str();
}

std::string TuningText(const Tuned& tuned) {
  const std::string story = tuned.story().text;
  return story.empty() ? story : ",\n\"tuning\":" + story;
}

}  // namespace

std::string Telemetry::CallsInFlight(int64_t now_ns, bool ask_others, size_t most_bytes) const {
  std::string calls;
  for (const auto& set : sets_.Own()) {
    // A caller may hold the queue and wait for a lock of the set, whose owner is stopped.
    std::unique_lock lock(set->queue.mutex, std::try_to_lock);
    for (const int64_t limit = NowNs() + kQueueLimit; !lock && NowNs() < limit;) {
      std::this_thread::sleep_for(kTryAgain);
      (void)lock.try_lock();
    }
    if (!lock) continue;
    std::vector<std::shared_ptr<Entry>> entries;
    for (const uint32_t id : set->queue.in_flight.ids())
      entries.push_back(set->queue.in_flight.Find(id));
    entries.insert(entries.end(), set->queue.joins.begin(), set->queue.joins.end());
    const size_t published = entries.size();
    entries.insert(entries.end(), set->queue.pending_copies.begin(),
                   set->queue.pending_copies.end());
    for (size_t k = 0; k < entries.size() && calls.size() < most_bytes; ++k) {
      const std::shared_ptr<Entry>& entry = entries[k];
      const CollectiveEntry* const collective = AsCollective(entry.get());
      const uint64_t bucket = collective ? collective->bucket.load(std::memory_order_relaxed) : 0;
      std::optional<Attendance> attendance;
      if (bucket == 0 && ask_others && k < published) attendance = set->AttendanceOf(collective);
      std::ostringstream call;
      call << "{\"tensor\":" << Quoted(entry->display_name) << ",\"set\":" << set->id
           << ",\"ranks\":" << ListOf(set->ranks)
           << ",\"age\":" << SecondsSince(entry->submitted_ns, now_ns)
           << ",\"collective\":" << bucket
           << ",\"blocks\":" << (entry->waiters.load(std::memory_order_relaxed) > 0 ? 1 : 0);
      if (attendance) {
        call << ",\"ready\":" << ListOf(attendance->ready)
             << ",\"missing\":" << ListOf(attendance->missing);
      }
      calls += (calls.empty() ? "" : ",\n") + call.str() + "}";
    }
  }
  return "[" + calls + "]";
}

std::string Telemetry::PlansText() const {
  const PlansState state = job_.plans_state();
  std::string text = "{\"left\":" + Quoted(state.left) +
                     ",\"rounds\":" + std::to_string(job_.counters.plan_rounds);
  const char* comma = ",\"unlocks\":{";
  for (const auto& [reason, count] : kUnlocks)
    text += std::exchange(comma, ",") + Quoted(reason) + ":" + std::to_string(job_.counters.*count);
  comma = "},\"lacks\":{";
  text += std::exchange(comma, "");
  for (const OpenBucket& bucket : state.open)
    text += std::exchange(comma, ",") + Quoted(bucket.name) + ":" + Quoted(bucket.lacks);
  return text + "}}";
}

std::string Telemetry::FlightText(const std::string& reason, bool ask_others,
                                  const ReadingScope& scope, const std::string& more) {
  const std::string stack = scope.stack ? job_.stacks.Take() : "";
  const int64_t now = NowNs();
  timespec wall{};
  clock_gettime(CLOCK_REALTIME, &wall);
  std::ostringstream head;
  head << std::setprecision(15) << "{\"format\":1,\"rank\":" << job_.rank()
       << ",\"size\":" << job_.placement.size << ",\"host\":" << Quoted(job_.host)
       << ",\"pid\":" << ::getpid() << ",\"time\":" << wall.tv_sec
       << ",\"clock\":" << static_cast<double>(now) / 1e9 << ",\"reason\":" << Quoted(reason)
       << ",\"agreed\":" << job_.counters.decisions.load(std::memory_order_relaxed) << more
       << ",\n\"calls\":" << CallsInFlight(now, ask_others, scope.bytes / 2)
       << ",\n\"plans\":" << PlansText() << TuningText(job_.tuned)
       << ",\n\"stack\":" << Quoted(stack) << ",\n\"events\":[";
  std::string text = std::move(head).str();
  const std::vector<FlightRing::Record> records = job_.events.ring().Read();
  std::vector<std::string> events;  // the latest first, as many as there is room for
  size_t bytes = text.size() + kEndOfFlight.size();
  for (auto record = records.rbegin(); record != records.rend() && events.size() < scope.events;
       ++record) {
    if (SecondsSince(record->time_ns, now) > scope.seconds) continue;
    std::string event = EventText(*record, now);
    bytes += event.size() + kBetweenEvents.size();
    if (bytes > scope.bytes) break;
    events.push_back(std::move(event));
  }
  for (auto event = events.rbegin(); event != events.rend(); ++event)
    (text += event == events.rbegin() ? kBetweenEvents.substr(1) : kBetweenEvents) += *event;
  return text += kEndOfFlight;
}

std::string Telemetry::Reading(const ReadingScope& scope) {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  std::ostringstream more;
  more << std::setprecision(15) << ",\"host_ranks\":" << ListOf(job_.share.ranks)
       << ",\"since\":" << SecondsSince(0, began_ns_)
       << ",\"cpu\":" << static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9
       << ",\"no_cpu\":" << SecondsWithoutProcessor()
       << ",\"flight_events\":" << job_.settings.flight_events
       << ",\"failure\":" << Quoted(job_.aborted() ? job_.control.aborted().message : "")
       << ",\n\"counters\":{";
  std::istringstream lines(CounterText());
  const char* comma = "";
  for (std::string line; std::getline(lines, line);) {
    const size_t mark = line.find('=');
    more << std::exchange(comma, ",") << '"' << line.substr(0, mark)
         << "\":" << line.substr(mark + 1);
  }
  more << "}";
  return FlightText("somebody looks", !job_.aborted(), scope, more.str());
}

void Telemetry::RecordFlight(const std::string& reason, bool ask_others) {
  if (job_.settings.flight_dir.empty()) return;
  job_.callbacks.Post([this, text = FlightText(reason, ask_others, kWholeRecord, "")] {
    const std::filesystem::path folder(job_.settings.flight_dir);
    std::error_code failed;
    std::filesystem::create_directories(folder, failed);
    const std::string name = "rank." + std::to_string(job_.rank()) + ".json";
    // Others may write to the folder: the file has a name that nobody knows before, and is new.
    std::string unfinished = folder / ("." + name + ".XXXXXX");
    const Fd file(::mkostemp(unfinished.data(), O_CLOEXEC));
    if (!file || !WriteAll(file.get(), text))
      failed = std::error_code(errno, std::generic_category());
    else
      std::filesystem::rename(unfinished, folder / name, failed);
    if (failed) {
      if (file) ::unlink(unfinished.c_str());
      job_.log.Write(LogLevel::kWarning, "the record of the flight cannot be written to " +
                                             job_.settings.flight_dir + ": " + failed.message());
    }
  });
}

Status Telemetry::StartTimeline(const std::string& path, bool mark_cycles) {
  if (job_.rank() != 0) return {};
  std::lock_guard lock(mutex_);
  if (timeline_) return MakeError(ErrorKind::kInvalid, "a timeline is being written already");
  HA_ASSIGN(timeline_, Timeline::Open(path, job_.rank(), job_.log, mark_cycles));
  job_.events.Attach(timeline_);
  return {};
}

Status Telemetry::StopTimeline() {
  std::lock_guard lock(mutex_);
  if (!timeline_) return {};
  job_.events.Detach(timeline_.get());
  return std::exchange(timeline_, nullptr)->Close();
}

std::string Telemetry::CounterText() const {
  std::ostringstream text;
  const auto line = [&](const char* name, uint64_t value) { text << name << '=' << value << '\n'; };
  const auto counter = [&](const char* name, const std::atomic<uint64_t>& value) {
    line(name, value.load(std::memory_order_relaxed));
  };
  counter("submissions", job_.counters.submissions);
  counter("decisions", job_.counters.decisions);
  counter("buckets", job_.counters.buckets);
  counter("arena_bytes", job_.counters.arena_bytes);
  counter("staged_bytes", job_.counters.staged_bytes);
  counter("window_bytes", job_.counters.window_bytes);
  counter("link_bytes", job_.counters.link_bytes);
  counter("gpu_bytes", job_.counters.gpu_bytes);
  counter("gpu_leader_bytes", job_.counters.gpu_leader_bytes);
  counter("gpu_stream_bytes", job_.counters.gpu_stream_bytes);
  counter("gpu_kernel_bytes", job_.counters.gpu_kernel_bytes);
  counter("gpu_nccl_bytes", job_.counters.gpu_nccl_bytes);
  counter("gpu_composed_bytes", job_.counters.gpu_composed_bytes);
  counter("gpu_moved_bytes", job_.counters.gpu_moved_bytes);
  counter("gpu_overlapped_buckets", job_.counters.gpu_overlapped_buckets);
  counter("last_arriver", job_.counters.last_arriver);
  counter("plan_locks", job_.counters.plan_locks);
  counter("plan_rounds", job_.counters.plan_rounds);
  counter("plan_granted", job_.counters.plan_granted);
  counter("plan_dropped", job_.counters.plan_dropped);
  for (const auto& [reason, count] : kUnlocks)
    line((std::string("plan_unlocks_") + reason).c_str(), job_.counters.*count);
  counter("driven_waits", job_.counters.driven_waits);
  counter("coordinator_wakes", job_.counters.coordinator_wakes);
  counter("waited_ns", job_.counters.waited_ns);
  const Tuned::Values tuned = job_.tuned.values();
  line("tuned_fusion_threshold", tuned.fusion_threshold);
  line("tuned_last_arriver_bytes", tuned.last_arriver_bytes);
  line("tuned_window_bytes", tuned.way.window_bytes);
  line("tuned_algorithm", tuned.way.algorithm);
  const Tuned::Story story = job_.tuned.story();
  line("autotune_trials", story.trials);
  line("autotune_kept", story.kept);
  const ControlMux::Sent sent = job_.mux ? job_.mux->sent() : ControlMux::Sent{};
  line("control_messages", sent.messages);
  line("control_bytes", sent.bytes);
  const SocketCounters none;
  const SocketCounters& sockets = job_.multi_host ? job_.multi_host->sockets() : none;
  counter("data_connections", sockets.connections);
  counter("data_send_calls", sockets.send_calls);
  counter("data_receive_calls", sockets.receive_calls);
  const ArenaStats stats = job_.arena->stats();
  line("arena_in_use", stats.bytes_in_use);
  line("arena_touched", stats.bytes_touched);
  return text.str();
}

}  // namespace horoacc
