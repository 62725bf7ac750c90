#pragma once
// One rank's engine: owns one of each room and the only loop.
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/events.h"
#include "base/log.h"
#include "base/settings.h"
#include "execute/cuda/host/gpus.h"
#include "negotiate/control_segment/set_segment.h"
#include "negotiate/tree/tree_controller.h"
#include "runtime/engine/counters.h"
#include "runtime/engine/handles.h"
#include "runtime/engine/task_threads.h"
#include "runtime/health/heartbeat_monitor.h"
#include "runtime/health/stack_source.h"
#include "runtime/messages/message_exchange.h"
#include "runtime/sets/multi_host_job.h"
#include "runtime/sets/multi_host_run.h"
#include "runtime/sets/process_set.h"
#include "runtime/trace/timeline.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/control/control_links.h"
#include "transport/memory/arena.h"
#include "transport/memory/host_share.h"
#include "transport/mpi/mpi_session.h"
#include "transport/wake/doorbell.h"

namespace horoacc {

struct Placement {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;
  int cross_rank = 0, cross_size = 1;
};

/// What the transport room has made before the engine starts.
struct EngineParts {
  Placement placement;
  std::unique_ptr<Bootstrap> bootstrap;
  HostShare share;
  std::unique_ptr<ControlLinks> links;  ///< null: negotiation runs on the control segment
  std::shared_ptr<FaultPoints> faults;  ///< null: as the settings order
  std::optional<MultiHostParts>
      multi_host;                   ///< if not all ranks share memory; then there are links
  std::shared_ptr<MpiSession> mpi;  ///< if the job uses MPI
  std::vector<std::shared_ptr<void>> keep_alive;
};

/// One call as the framework makes it.
struct Submission {
  uint32_t process_set = 0;
  std::string name;      ///< empty: unnamed
  bool grouped = false;  ///< the name is that of the first of n tensors, and ends in "_1of<n>"
  Request request;
  struct Buffers {
    const void* input = nullptr;
    void* output = nullptr;  ///< nullptr: the engine allocates
  };
  std::vector<Buffers> buffers;  ///< one for every tensor of the request
  std::function<void()> done;
  double limit_seconds = 0;  ///< after which the call is given up; 0: never
  /// Where the buffers lie, if not in the host's memory, and on which stream they get ready.
  struct Device {
    int number = 0;
    void* stream = nullptr;
  };
  std::optional<Device> device;
};

/// Threads: docs/thread_model.md. Any thread may call any public method.
class Engine {
 public:
  static Result<std::unique_ptr<Engine>> Create(Settings settings, EngineParts parts);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  [[nodiscard]] const Placement& placement() const { return placement_; }
  [[nodiscard]] const Settings& settings() const { return settings_; }
  [[nodiscard]] EventStream& events() { return events_; }
  [[nodiscard]] Counters& counters() { return counters_; }
  [[nodiscard]] std::string CounterText() const;

  /// Asked now and then by a call that waits for other ranks; true ends the wait with kTimeout. The
  /// call itself goes on, in step with the other ranks.
  using Interrupted = std::function<bool()>;
  /// What a rank means by the ranks that it names: the set that all ranks name, or the part of the
  /// job that it is in itself, as of a communicator that was split; each part then becomes a set.
  enum class Claim : int64_t { kRefused = -1, kWhole = 0, kOwnPart = 1 };
  Result<uint32_t> AddProcessSet(std::vector<int> ranks, Claim claim = Claim::kWhole,
                                 const Interrupted& interrupted = {});
  Status RemoveProcessSet(uint32_t id, Claim claim = Claim::kWhole,
                          const Interrupted& interrupted = {});
  /// Of the sets that all ranks know.
  [[nodiscard]] std::vector<uint32_t> ProcessSetIds() const;
  [[nodiscard]] std::optional<std::vector<int>> ProcessSetRanks(uint32_t id) const;

  // groups.cc: process sets of which only their members know. One member claims the number and
  // tells it to the others, who join; there is no collective, and nobody else takes part.
  Result<uint32_t> ClaimGroup(const std::vector<int>& ranks);
  Status JoinGroup(uint32_t id, const std::vector<int>& ranks);
  /// What is undecided ends with an error here and on the other members. Unknown: does nothing.
  Status LeaveGroup(uint32_t id);
  /// The caller's patience with a call has ended after `seconds`: says whom it waits for, and ends
  /// the process set on all its ranks. Gives the call's own outcome if it is complete by now.
  Status GiveUp(uint64_t handle, double seconds);

  /// Publishes the call and returns its handle at once.
  Result<uint64_t> Submit(Submission submission);
  /// A message to or from one rank of a process set. messages.cc
  Result<uint64_t> SubmitMessage(uint32_t process_set, Message message, Submission::Buffers buffers,
                                 double limit_seconds, std::function<void()> done);
  /// nullopt: unknown handle.
  [[nodiscard]] std::optional<bool> Poll(uint64_t handle);
  /// kTimeout at the deadline (the handle stays); else the call's outcome.
  Status Wait(uint64_t handle, int64_t deadline_ns);
  [[nodiscard]] std::shared_ptr<Entry> Find(uint64_t handle) const { return handles_.Find(handle); }
  void Release(uint64_t handle);
  /// What comes on a GPU's stream from now on finds the results of a complete call. Does nothing
  /// for a call of the host's memory.
  Status JoinStream(uint64_t handle, void* stream);

  /// Ends what is in flight with kAborted, tells the peers, joins the threads.
  Status Shutdown();
  /// The same without a word to the peers, before the process ends in failure: they notice its
  /// death. Whoever is told earlier may fail, and end, before the rank that is at fault.
  Status Abandon();

  /// Finalises MPI if HoroACC initialised it and the job ended in good order.
  Status FinalizeMpi();

  [[nodiscard]] void* AllocateShared(size_t bytes);
  void FreeShared(void* memory);
  /// Tensors may lie in it for longer than the engine lives: who keeps it has it take over the
  /// memory of this rank (Arena::Own) then.
  [[nodiscard]] const std::shared_ptr<Arena>& arena() const { return arena_; }
  [[nodiscard]] Segment memory() const { return share_.memory[share_.local_rank]; }
  /// In a child that a thread of this process forks: what is the parent's alone stays so.
  void AfterForkInChild();

  /// How to ask where this process's interpreter is.
  [[nodiscard]] StackSource& stacks() { return stacks_; }

  Status StartTimeline(const std::string& path, bool mark_cycles);
  Status StopTimeline();

 private:
  Engine(Settings settings, EngineParts parts);
  Status Start();
  Status JoinThreads();
  void LetGo();  // let_go.cc
  [[nodiscard]] int64_t SpinTime(std::span<const std::string> allowed) const;
  std::unique_ptr<ProcessSet> MakeSet(uint32_t id, std::vector<int> ranks);
  std::unique_ptr<ProcessSet> MakeSet(uint32_t id, uint32_t place, std::vector<int> ranks);
  [[nodiscard]] std::shared_ptr<ProcessSet> FindSet(uint32_t id) const;
  [[nodiscard]] std::vector<std::shared_ptr<ProcessSet>> Sets() const;
  [[nodiscard]] std::vector<std::shared_ptr<ProcessSet>> SetsOfThisRank()
      const;  // under sets_mutex_
  /// Sets() and the removed ones that are not done. Under driver_mutex_.
  [[nodiscard]] std::vector<std::shared_ptr<ProcessSet>> DrivenSets();

  // engine_spread.cc: of a job whose ranks do not all share memory.
  Status StartMultiHost(MultiHostParts parts);
  std::unique_ptr<ProcessSet> MakeMultiHostSet(uint32_t id, uint32_t place, std::vector<int> ranks);
  Status BeginMultiHost(ProcessSet& set, std::unique_ptr<Running> running);
  [[nodiscard]] std::optional<Attendance> AttendanceOf(const ProcessSet& set,
                                                       const Entry& entry) const;

  // process_sets.cc: on set_calls_
  enum class SetChange : int64_t { kAdd = 1, kRemove = 2 };
  struct TakenSlot {
    uint32_t id = 0;  // of the new set, unless there are parts
    std::vector<std::vector<int>> parts;
  };
  Result<uint32_t> AddAgreedSet(std::vector<int> ranks, Claim claim);
  Result<uint32_t> AddParts(const std::vector<std::vector<int>>& parts,
                            const std::vector<int>& own);
  Status RemoveAgreedSet(uint32_t id, Claim claim);
  [[nodiscard]] std::optional<uint32_t> FindSetOf(const std::vector<int>& ranks) const;
  Result<TakenSlot> TakeSlot(const std::vector<int>& ranks, Claim claim);
  // set_agreement.cc: on set_calls_
  struct SetAgreement {
    uint64_t free_slots = 0;              // those that are free on all ranks
    std::vector<std::vector<int>> parts;  // if the ranks named several sets, each its own
  };
  static const char* VerbOf(SetChange change);
  Result<SetAgreement> AgreeOnSet(SetChange change, Claim claim, const std::vector<int>& ranks,
                                  uint64_t free_slots);
  Error Refuse(SetChange change, std::string reason);
  [[nodiscard]] uint64_t FreeSlots() const;
  [[nodiscard]] size_t CountSets() const;
  void AwaitRemovedSets() const;

  // groups.cc
  Status AddGroup(uint32_t id, const std::vector<int>& ranks);
  Status CheckGroup(const std::vector<int>& ranks) const;
  void ReturnGroup(uint32_t id);
  [[nodiscard]] Result<uint32_t> PlaceOfGroup(uint32_t id) const;

  // give_up.cc
  Error GiveUp(const std::shared_ptr<Entry>& entry, double seconds);
  void WatchDeadlines();
  Status EndSet(ProcessSet& set);  // under driver_mutex_
  [[nodiscard]] Error TooLate(const Entry& entry, double seconds) const;

  // messages.cc
  std::unique_ptr<MessageExchange> MakeMessageExchange();
  void CompleteMessage(Entry& entry, Status outcome);
  [[nodiscard]] std::optional<Error> WhyNoMessage(const Entry& entry) const;
  [[nodiscard]] std::string WhoIsMissing(const ProcessSet& set, const Entry& entry) const;
  Status EndGivenUp();  // under driver_mutex_

  // engine_submit.cc
  [[nodiscard]] std::string Validate(const ProcessSet& set, const Submission& submission) const;
  [[nodiscard]] static std::string FindNotFinite(const Request& request,
                                                 std::span<const void* const> inputs);
  Status Publish(ProcessSet& set, const std::shared_ptr<Entry>& entry);
  Status PublishRow(ProcessSet& set, Entry& entry, uint64_t generation);
  [[nodiscard]] Status Place(ProcessSet& set, Entry& entry);
  Status PublishBacklog(ProcessSet& set);
  static Status LookUpAgain(ProcessSet& set, Entry& entry);
  Status PublishInTurn(ProcessSet& set, const std::shared_ptr<Entry>& entry);
  static Status AnnounceJoin(ProcessSet& set);
  Result<uint64_t> TakeOverJoin(SetQueue& queue, Entry& entry);

  // engine_device.cc: calls of a GPU's memory
  [[nodiscard]] Status CheckGpuMode(const ProcessSet& set) const;
  [[nodiscard]] bool StaysOnGpu(const ProcessSet& set, const Submission& submission) const;
  Status BeginDevice(Entry& entry, const Submission& submission);
  bool MustArrive(const SetQueue& queue, const Entry& entry) const;
  [[nodiscard]] bool IsPipelined(const Request& request) const;
  [[nodiscard]] bool RunsPipelined(const Running& running) const;
  [[nodiscard]] Result<bool> MayBePublished(const ProcessSet& set, Entry& entry) const;
  [[nodiscard]] std::unique_ptr<ChunkPipeline> PipelineOf(
      std::span<const MultiHostRun::Call> calls);
  Result<bool> PublishArrived(ProcessSet& set);  // under driver_mutex_
  static Status LandDevice(Entry& entry);
  // engine_gpus.cc: reductions that GPUs may carry out; under driver_mutex_
  [[nodiscard]] static bool FitsMode(const Request& request, GpuMode mode, uint32_t ranks);
  [[nodiscard]] static GpuMode ModeOf(const ProcessSet& set, const Running& running);
  [[nodiscard]] static bool MayRunOnGpus(const ProcessSet& set, const Running& running);
  std::unique_ptr<Execution> MakeDeviceRun(ProcessSet& set, Running& running);
  std::unique_ptr<Execution> MakeModeRun(ProcessSet& set, const Running& running, GpuMode mode);
  std::unique_ptr<Execution> MakeExchangeRun(ProcessSet& set, const Running& running, GpuMode mode);
  cuda::GpuGroup* FindGpuGroup(ProcessSet& set, const Running& running);

  // engine_drive.cc: under driver_mutex_.
  bool Progress();
  Result<bool> ProgressSet(ProcessSet& set);
  Status Begin(ProcessSet& set, Decision decision);
  std::unique_ptr<Execution> MakeExecution(ProcessSet& set, Running& running, Status& status);
  std::unique_ptr<Execution> MakeHostExecution(ProcessSet& set, Running& running, Status& status);
  Status End(ProcessSet& set, std::unique_ptr<Running> running);
  Status EndJoin(ProcessSet& set, std::unique_ptr<Running> running);
  Status Drain(ProcessSet& set);
  void Complete(ProcessSet& set, Entry& entry, Status outcome);
  void WakeWaiters(Entry& entry);
  // engine_fail.cc: under driver_mutex_, but for the last two
  std::vector<std::shared_ptr<Entry>> TakeUndecided(ProcessSet& set);
  void FailUndecided(ProcessSet& set, const Error& error);
  void FailAll(const Error& error);
  void Abort(const Error& error);
  void AbortUnlessTold(const Error& error);
  bool AbortHere(const Error& error);

  // engine_wait.cc
  void Coordinate(const std::stop_token& stop);
  Status AwaitEntry(Entry& entry, int64_t deadline_ns);
  uint32_t DriveUntil(Entry& entry, int64_t deadline_ns);
  void LeaveDriver(uint32_t seen);
  [[nodiscard]] bool WorkLeft();
  [[nodiscard]] bool AnythingPending() const;
  void SayBlocked(Entry& entry);
  void UnblockCallbacks();

  /// After an abort: every rank has stopped touching shared memory, has left or is dead.
  [[nodiscard]] bool AllStopped() const;
  void EmptyQuarantine();

  // blame.cc
  [[nodiscard]] Error AnnotateError(Error error, const ProcessSet* set, const Entry* entry) const;
  /// Of a call that is not taken any more.
  [[nodiscard]] Error AnnotateRefusal(Error error, const ProcessSet* set,
                                      const std::string& tensor) const;

  // heartbeat.cc
  void Introduce();
  [[nodiscard]] Status CheckEpochs() const;
  [[nodiscard]] std::string HowFar(uint32_t local) const;
  void Beat();
  [[nodiscard]] int64_t UntilBeat(int64_t now_ns) const;
  void WatchSilences(int64_t now_ns);
  void TellSilence(HeartbeatMonitor::News news, int rank, const std::string& who,
                   int64_t silent_ns);

  // ask_stacks.cc
  void AnswerForStack();
  [[nodiscard]] bool HasStacksOf(const std::vector<int>& ranks, Entry& entry);
  void AskForStack(int rank);
  [[nodiscard]] std::optional<std::string> StackOf(int rank);
  [[nodiscard]] std::string ShowStacks(const std::vector<int>& ranks);

  // flight.cc
  [[nodiscard]] std::string CallsInFlight(int64_t now_ns, bool ask_others);
  [[nodiscard]] std::string FlightText(const std::string& reason, bool ask_others);
  void RecordFlight(const std::string& reason, bool ask_others);

  // watch.cc
  void WatchPeers();
  void WatchStalls();
  void WatchProcessSets(const Entry& entry);
  void ReportStall(const ProcessSet& set, Entry& entry, int64_t waited_ns);
  struct StallLimits {
    int64_t warn_ns = 0;
    int64_t end_ns = 0;  ///< 0: never
  };
  [[nodiscard]] bool WatchRun(ProcessSet& set, Entry& entry, StallLimits limits, int64_t now_ns);
  [[nodiscard]] bool WatchJoins(ProcessSet& set, StallLimits limits);

  const Settings settings_;
  const Placement placement_;
  const Log log_;
  std::vector<std::shared_ptr<void>> keep_alive_;
  std::shared_ptr<MpiSession> mpi_;
  std::unique_ptr<Bootstrap> bootstrap_;
  HostShare share_;
  std::unique_ptr<ControlLinks> links_;
  std::unique_ptr<ControlMux> mux_;
  ControlSegment control_;
  Doorbells doorbells_;
  std::shared_ptr<Arena> arena_;
  std::optional<MultiHostParts> multi_host_parts_;  ///< until Start
  std::unique_ptr<MultiHostJob> multi_host_;
  std::shared_ptr<FaultPoints> faults_;
  std::vector<std::string> hosts_;                           ///< names, by rank
  std::shared_ptr<const schedule::MeasuredTable> measured_;  ///< agreed; of jobs on several hosts
  EventStream events_;
  StackSource stacks_;
  std::mutex tickets_mutex_;
  std::vector<uint32_t> tickets_;  ///< by rank: the number of this rank's latest wish for its stack
  Counters counters_;
  cuda::Gpus gpus_;
  std::atomic<uint32_t> arriving_{0};    ///< who waits for a GPU, which wakes nobody; in all sets
  std::atomic<uint64_t> data_moves_{0};  ///< turns of the loop in which data came or went
  Handles handles_;
  std::unique_ptr<MessageExchange> messages_;
  TaskThreads completion_{16};  ///< runs callbacks
  std::mutex timeline_mutex_;
  std::shared_ptr<Timeline> timeline_;

  std::mutex groups_mutex_;  ///< one group is added at a time
  mutable std::mutex sets_mutex_;
  std::vector<std::shared_ptr<ProcessSet>> sets_;          ///< by slot; null where there is none
  std::vector<std::shared_ptr<ProcessSet>> removed_sets_;  ///< not done when they were removed
  TaskThreads set_calls_{1};  ///< adds and removes process sets, one at a time
  std::vector<uint32_t> slot_uses_ = std::vector<uint32_t>(kMaxProcessSets);  ///< that thread's

  /// Calls that nobody waits for any more, and what to end them with: for the driver.
  std::mutex given_up_mutex_;
  std::vector<std::pair<std::shared_ptr<Entry>, Error>> given_up_;
  std::atomic<bool> any_given_up_{false};

  std::mutex driver_mutex_;
  int64_t driven_since_ns_ = 0;  ///< by a caller that waits; 0: by nobody, or for a look. Under it
  std::atomic<uint32_t> completed_{0};  ///< futex of callers that wait while another drives
  std::atomic<uint32_t> waiting_{0};
  std::atomic<bool> stopping_{false};
  bool gone_ = false;            ///< see LetGo; under driver_mutex_
  bool ended_in_abort_ = false;  ///< once it is gone
  std::mutex failure_mutex_;
  std::optional<Error> failure_;  ///< why the engine can do nothing more
  std::mutex quarantine_mutex_;
  std::vector<void*> quarantine_;  ///< shared blocks that a slow peer might still write
  std::atomic<int64_t> next_watch_ns_{0};
  std::mutex watch_mutex_;                        ///< one looks at a time
  std::unique_ptr<HeartbeatMonitor> heartbeats_;  ///< of the host's ranks, then of all, by rank
  std::vector<int> watched_across_;               ///< at the latest look
  std::atomic<bool> doubtful_{false};
  int64_t next_beat_across_ns_ = 0;  ///< the coordinator's
  int64_t spin_ns_ = 0;
  bool must_poll_ = false;  ///< some links wake nobody (MPI)
  std::jthread coordinator_;
};

}  // namespace horoacc
