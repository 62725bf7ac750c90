#include "runtime/trace/timeline.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "runtime/trace/trace_file.h"

namespace horoacc {
namespace {

constexpr auto kReadySet = std::chrono::milliseconds(100);
constexpr size_t kMostEvents = size_t{1} << 20;
constexpr size_t kMostText = size_t{64} << 20;
constexpr size_t kKeptEvents = size_t{1} << 14;

constexpr Ticks kNever = -1;

/// An event that owns its text.
struct Record {
  Phase phase;
  uint32_t process_set;
  int64_t time_ns;
  uint64_t handle;
  uint64_t bucket;
  uint64_t value;
  std::string tensor;
  std::string detail;
};

/// A tensor's way from its submission to the release of its handle.
struct Life {
  size_t lane = 0;
  uint32_t process_set = 0;
  std::string tensor;
  std::string collective;
  std::string path;
  std::string error;
  uint64_t bucket = 0;
  uint64_t bytes = 0;
  Ticks queued = 0;
  Ticks negotiated = kNever;
  Ticks execute = kNever;
  Ticks over = kNever;
  Ticks released = kNever;
  Ticks latest = 0;  ///< the next event is no earlier; `released` may come at any time
};

/// Unnamed tensors are numbered for ever; lanes are not, so these share the lanes of their kind.
std::string LaneName(const std::string& tensor) {
  constexpr std::string_view kUnnamed = ".noname.";
  const size_t at = tensor.rfind(kUnnamed);
  if (at == std::string::npos) return tensor;
  const size_t number = at + kUnnamed.size();
  if (number == tensor.size() ||
      tensor.find_first_not_of("0123456789", number) != std::string::npos) {
    return tensor;
  }
  return tensor.substr(0, number) + "*";
}

/// Turns events into slices. Used by the writer thread alone.
class Lanes {
 public:
  Lanes(TraceFile file, int64_t start_ns, bool mark_cycles)
      : file_(std::move(file)), start_ns_(start_ns), lanes_(1) {
    if (mark_cycles) decisions_ = AddLane("decisions");
  }

  void Take(Record& record);
  /// Ends all lives that have not ended.
  void Finish(uint64_t dropped);
  [[nodiscard]] Status Flush() { return file_.Flush(); }

 private:
  struct Lane {
    std::optional<uint64_t> handle;
    Ticks free_from = 0;
  };

  // Viewers reject times before zero.
  [[nodiscard]] Ticks SinceStart(int64_t time_ns) const {
    return std::max<int64_t>(time_ns - start_ns_, 0) / kTickNs;
  }
  size_t AddLane(const std::string& title);
  size_t LaneFor(const Record& record, Ticks time);
  void Begin(Record& record, Ticks time);
  void MarkDecision(const Record& record, Ticks time);
  void CutShort(uint64_t handle, Ticks time);
  void End(uint64_t handle, Ticks end);

  TraceFile file_;
  int64_t start_ns_;
  std::optional<size_t> decisions_;
  std::unordered_map<uint32_t, uint64_t> marked_;  ///< per set, the last bucket marked
  std::vector<Lane> lanes_;                        ///< by tid; lane 0 is the whole rank
  std::map<std::pair<uint32_t, std::string>, std::vector<size_t>> lanes_by_name_;
  std::unordered_map<uint64_t, Life> lives_;  ///< by handle
};

void Lanes::Take(Record& record) {
  const Ticks time = SinceStart(record.time_ns);
  if (record.phase == Phase::kQueued) return Begin(record, time);
  if (record.phase == Phase::kNegotiated && decisions_) MarkDecision(record, time);
  const auto found = lives_.find(record.handle);
  // The call was queued before the timeline began, or its first event was dropped.
  if (found == lives_.end()) return;
  Life& life = found->second;
  if (record.phase == Phase::kReleased) {
    life.released = time;
    if (life.over != kNever) End(record.handle, std::max(life.over, time));
    return;
  }
  life.latest = std::max(life.latest, time);
  switch (record.phase) {
    case Phase::kNegotiated:
      life.negotiated = life.latest;
      break;
    case Phase::kExecute:
      // At least one tick long: a viewer puts an empty slice at the end of the outer one outside.
      life.execute = life.latest++;
      life.bucket = record.bucket;
      life.bytes = record.value;
      life.path = std::move(record.detail);
      break;
    case Phase::kError:
      life.error = std::move(record.detail);
      [[fallthrough]];
    case Phase::kExecuted:
      life.over = life.latest;
      if (life.released != kNever) End(record.handle, std::max(life.over, life.released));
      break;
    case Phase::kQueued:
    case Phase::kReleased:
      break;
  }
}

void Lanes::Finish(uint64_t dropped) {
  const Ticks now = SinceStart(NowNs());
  while (!lives_.empty()) CutShort(lives_.begin()->first, now);
  if (dropped > 0) file_.AddMetadata("dropped_events", R"("count":)" + std::to_string(dropped));
}

size_t Lanes::AddLane(const std::string& title) {
  file_.AddLane(lanes_.size(), title);
  lanes_.emplace_back();
  return lanes_.size() - 1;
}

size_t Lanes::LaneFor(const Record& record, Ticks time) {
  std::string name = LaneName(record.tensor);
  const bool shared = name != record.tensor;
  if (record.process_set != 0) {
    name += " [process set " + std::to_string(record.process_set) + "]";
  }
  std::vector<size_t>& own = lanes_by_name_[{record.process_set, name}];
  for (const size_t lane : own) {
    if (!shared || (!lanes_[lane].handle && lanes_[lane].free_from <= time)) return lane;
  }
  if (!own.empty()) name += " (" + std::to_string(own.size() + 1) + ")";
  own.push_back(AddLane(name));
  return own.back();
}

void Lanes::Begin(Record& record, Ticks time) {
  CutShort(record.handle, time);
  const size_t lane = LaneFor(record, time);
  // The older call's handle was released before its end, and the name was used again.
  if (lanes_[lane].handle) CutShort(*lanes_[lane].handle, time);
  // Threads read the clock before they queue an event, so `time` may be before the lane is free.
  time = std::max(time, lanes_[lane].free_from);
  lanes_[lane].handle = record.handle;
  Life life;
  life.lane = lane;
  life.process_set = record.process_set;
  life.tensor = std::move(record.tensor);
  life.collective = std::move(record.detail);
  life.queued = life.latest = time;
  lives_.emplace(record.handle, std::move(life));
}

void Lanes::MarkDecision(const Record& record, Ticks time) {
  if (std::exchange(marked_[record.process_set], record.bucket) == record.bucket) return;
  file_.AddInstant(*decisions_, "CYCLE_START", time,
                   R"("process_set":)" + std::to_string(record.process_set) + R"(,"bucket":)" +
                       std::to_string(record.bucket));
}

// Ends a life without a release: with its result, or unfinished at `time`.
void Lanes::CutShort(uint64_t handle, Ticks time) {
  const auto found = lives_.find(handle);
  if (found == lives_.end()) return;
  const Life& life = found->second;
  End(handle, life.over != kNever ? life.over : std::max(life.latest, time));
}

void Lanes::End(uint64_t handle, Ticks end) {
  const Life life = std::move(lives_.extract(handle).mapped());
  std::string args = R"("tensor":)" + JsonString(life.tensor) + R"(,"process_set":)" +
                     std::to_string(life.process_set);
  if (!life.error.empty()) args += R"(,"error":)" + JsonString(life.error);
  if (life.over == kNever) args += R"(,"unfinished":true)";
  file_.AddSlice(life.lane, life.collective, life.queued, end, args);

  const Ticks ran = life.over != kNever ? life.over : end;
  const Ticks began = life.execute != kNever ? life.execute : ran;
  const Ticks agreed = life.negotiated != kNever ? life.negotiated : began;
  std::string activity = life.collective;  // in Horovod's words, which tools look for
  std::ranges::transform(activity, activity.begin(),
                         [](char letter) { return static_cast<char>(std::toupper(letter)); });
  if (agreed > life.queued)
    file_.AddSlice(life.lane, "NEGOTIATE_" + activity, life.queued, agreed, "");
  if (began > agreed) file_.AddSlice(life.lane, "QUEUE", agreed, began, "");
  if (life.execute != kNever) {
    file_.AddSlice(life.lane, activity, began, ran,
                   R"("path":)" + JsonString(life.path) + R"(,"bytes":)" +
                       std::to_string(life.bytes) + R"(,"bucket":)" + std::to_string(life.bucket));
  }
  if (end > ran) file_.AddSlice(life.lane, "RESULT", ran, end, "");
  lanes_[life.lane].handle.reset();
  lanes_[life.lane].free_from = end;
}

}  // namespace

struct Timeline::State {
  State(std::string file_path, Log messages, Lanes tensor_lanes)
      : path(std::move(file_path)), log(std::move(messages)), lanes(std::move(tensor_lanes)) {}

  void Push(const Event& event);
  void Run();
  bool WriteBatch(std::vector<Record>& batch, bool last, uint64_t lost);

  const std::string path;
  const Log log;
  Lanes lanes;  ///< used by the writer thread alone
  std::mutex mutex;
  std::condition_variable wake;
  // Guarded by the mutex:
  std::vector<Record> queue;
  size_t text = 0;  ///< bytes that the queue's strings hold
  uint64_t dropped = 0;
  bool closing = false;
  bool failed = false;
  std::mutex close_mutex;
  std::jthread writer;
};

void Timeline::State::Push(const Event& event) {
  const bool first = event.phase == Phase::kQueued;
  // Later events find their tensor by the handle.
  const std::string_view tensor = first ? event.tensor : std::string_view();
  const size_t size = tensor.size() + event.detail.size();
  // The event is copied outside the lock; dropped if it cannot fit into an empty queue.
  std::optional<Record> record;
  if (size <= kMostText) {
    record =
        Record{event.phase,  event.process_set, event.time_ns,       event.handle,
               event.bucket, event.value,       std::string(tensor), std::string(event.detail)};
  }
  std::lock_guard lock(mutex);
  if (closing || failed) return;
  if (!record || queue.size() >= kMostEvents || text + size > kMostText) {
    ++dropped;
    return;
  }
  text += size;
  queue.push_back(std::move(*record));
  if (queue.size() == 1) wake.notify_one();
}

void Timeline::State::Run() {
  pthread_setname_np(pthread_self(), "horoacc-trace");
  // Signals are for the framework's threads, and past a file size limit the write shall fail
  // without a SIGXFSZ, which would end the job.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  std::vector<Record> batch;
  std::unique_lock lock(mutex);
  for (bool last = false; !last;) {
    // Not wait(), whose version in libstdc++ is g++ 12's: wheels are to load beside older ones.
    while (!closing && queue.empty()) wake.wait_for(lock, std::chrono::hours(1));
    // Gathers a batch, so that a busy engine rarely has to wake this thread.
    wake.wait_for(lock, kReadySet, [this] { return closing; });
    std::swap(batch, queue);
    text = 0;
    last = closing;
    const uint64_t lost = dropped;
    const bool write = !failed;
    lock.unlock();
    const bool written = write && WriteBatch(batch, last, lost);
    if (batch.capacity() > kKeptEvents) batch = {};
    batch.clear();
    lock.lock();
    failed = !written;
  }
}

bool Timeline::State::WriteBatch(std::vector<Record>& batch, bool last, uint64_t lost) {
  for (Record& record : batch) lanes.Take(record);
  if (last) {
    lanes.Finish(lost);
    if (lost > 0) {
      log.Write(LogLevel::kWarning, "the timeline '" + path + "' lacks " + std::to_string(lost) +
                                        " events: they came faster than they could be written");
    }
  }
  const Status flushed = lanes.Flush();
  if (!flushed.ok()) {
    log.Write(LogLevel::kWarning,
              "the timeline '" + path + "' ends here, the job goes on: " + flushed.error().message);
  }
  return flushed.ok();
}

Result<std::shared_ptr<Timeline>> Timeline::Open(const std::string& path, int rank, const Log& log,
                                                 bool mark_cycles) {
  const int64_t start_ns = NowNs();
  HA_ASSIGN(TraceFile file, TraceFile::Create(path, rank));
  Lanes lanes(std::move(file), start_ns, mark_cycles);
  auto state = std::make_unique<State>(path, log, std::move(lanes));
  State* const shared = state.get();
  try {
    state->writer = std::jthread([shared] { shared->Run(); });
  } catch (const std::system_error& refused) {
    return MakeError(ErrorKind::kSystem,
                     std::string("no thread for the timeline: ") + refused.what());
  }
  return std::shared_ptr<Timeline>(new Timeline(std::move(state)));
}

Timeline::Timeline(std::unique_ptr<State> state) : state_(std::move(state)) {}

Timeline::~Timeline() { (void)Close(); }

void Timeline::On(const Event& event) { state_->Push(event); }

// A failed write was logged in one warning; it is no error of the job.
Status Timeline::Close() {
  std::lock_guard one_closes(state_->close_mutex);
  {
    std::lock_guard lock(state_->mutex);
    state_->closing = true;
    state_->wake.notify_one();
  }
  if (state_->writer.joinable()) state_->writer.join();
  return {};
}

}  // namespace horoacc
