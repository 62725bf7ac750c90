#pragma once
// One rank's engine: a facade over the parts that negotiate, run and complete its calls.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/coordinator.h"
#include "runtime/engine/plans.h"
#include "runtime/engine/submitter.h"
#include "runtime/sets/groups.h"
#include "runtime/sets/set_changes.h"
#include "runtime/trace/reading_server.h"

namespace horoacc {

/// Threads: docs/thread_model.md. Any thread may call any public method.
class Engine final : public Calls {
 public:
  static Result<std::unique_ptr<Engine>> Create(Settings settings, EngineParts parts);
  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  [[nodiscard]] const Placement& placement() const { return job_.placement; }
  [[nodiscard]] const Settings& settings() const { return job_.settings; }
  [[nodiscard]] EventStream& events() { return job_.events; }
  [[nodiscard]] Counters& counters() { return job_.counters; }
  [[nodiscard]] StackSource& stacks() { return job_.stacks; }
  [[nodiscard]] Telemetry& telemetry() { return telemetry_; }
  [[nodiscard]] ReadingServer& readings() { return readings_; }

  // Calls. In Submit, SubmitMessage, Wait, Poll and GiveUp an exception of the standard library
  // becomes an abort of the job that names it, as it does in the engine's own thread and in
  // Shutdown.
  Result<uint64_t> Submit(Submission submission) override;
  Status Wait(uint64_t handle, int64_t deadline_ns) override;
  [[nodiscard]] std::shared_ptr<Entry> Find(uint64_t handle) const override {
    return handles_.Find(handle);
  }
  /// The same for so many seconds, or, if negative, for ever.
  Status WaitFor(uint64_t handle, double seconds);
  void Release(uint64_t handle) override;
  [[nodiscard]] Others OthersIn(uint32_t process_set, const std::string& name) const override;
  /// nullopt: unknown handle.
  [[nodiscard]] std::optional<bool> Poll(uint64_t handle);
  /// A message to or from one rank of a process set.
  Result<uint64_t> SubmitMessage(uint32_t process_set, const Message& message,
                                 Submission::Buffers buffers, double limit_seconds,
                                 std::function<void()> done);
  /// The caller waits for a call no longer than `seconds`, which are over: says whom it waits for,
  /// and ends the process set on all its ranks. Returns the call's own outcome if it is complete.
  Status GiveUp(uint64_t handle, double seconds);
  /// Work that is enqueued on a GPU's stream from now on finds the results of a complete call. Does
  /// nothing for a call of the host's memory.
  Status JoinStream(uint64_t handle, void* stream);

  /// Tensors that are reduced round after round; the plan must not outlive the engine.
  [[nodiscard]] std::unique_ptr<LockedPlan> MakePlan(Submission call,
                                                     const std::vector<std::string>& names);

  [[nodiscard]] const Tuned& tuned() const { return job_.tuned; }
  /// Changes tuned settings; see Tuned. At the end of a step, on all ranks with the same values.
  Status Tune(const Tuned::Values& values, Tuned::Story story);

  // Process sets, and groups, of which only their members know.
  Result<uint32_t> AddProcessSet(std::vector<int> ranks, SetClaim claim = SetClaim::kWhole,
                                 const Interrupted& interrupted = {}) {
    return set_changes_.Add(std::move(ranks), claim, interrupted);
  }
  Status RemoveProcessSet(uint32_t id, SetClaim claim = SetClaim::kWhole,
                          const Interrupted& interrupted = {}) {
    return set_changes_.Remove(id, claim, interrupted);
  }
  [[nodiscard]] std::vector<uint32_t> ProcessSetIds() const { return sets_.Ids(); }
  [[nodiscard]] std::optional<std::vector<int>> ProcessSetRanks(uint32_t id) const;
  [[nodiscard]] Groups& groups() { return groups_; }
  /// From now on this rank makes no call in a group. Messages that it has sent are still received.
  Status LeaveGroup(uint32_t id);

  /// Ends what is in flight with kAborted, tells the peers, joins the threads.
  Status Shutdown();
  /// The same without a word to the peers, before the process ends in failure: they notice its
  /// death. A rank that is told earlier may fail, and end, before the rank that is at fault.
  Status Abandon();
  /// Finalises MPI if HoroACC initialised it and the job ended in good order.
  Status FinalizeMpi();

  [[nodiscard]] void* AllocateShared(size_t bytes) { return job_.blocks.Allocate(bytes); }
  void FreeShared(void* memory) { job_.blocks.Free(memory); }
  /// Tensors may lie in it for longer than the engine lives: a binding that keeps it has it take
  /// over the memory of this rank (Arena::Own) then.
  [[nodiscard]] const std::shared_ptr<Arena>& arena() const { return job_.arena; }
  [[nodiscard]] Segment memory() const { return job_.share.memory[job_.local_rank()]; }
  /// In a child that a thread of this process forks: what is the parent's alone stays so.
  void AfterForkInChild();

 private:
  Engine(Settings settings, EngineParts parts);
  Status Start();
  Status LeaveJob(Driver::Lock& lock);
  /// What keeps this rank from leaving the job in good order.
  [[nodiscard]] std::string Unfinished();
  Status JoinThreads();
  void ReleaseResources();

  Job job_;
  Failure failure_{job_};
  DeviceCalls devices_{job_};  ///< before the sets and handles whose calls have blocks of its
  SetTable sets_{job_};
  Groups groups_{job_, sets_};
  Handles handles_;
  Telemetry telemetry_{job_, sets_};
  ReadingServer readings_{job_};
  Completion completion_{job_, failure_};
  Deadlines deadlines_{job_, failure_, sets_, telemetry_};
  MessageCalls messages_;
  Plans plans_;
  Submitter submitter_{job_, failure_, sets_, handles_, devices_};
  Driver driver_;
  Liveness liveness_{job_, failure_};
  StackExchange stacks_{job_};
  StallWatch stalls_{job_, failure_, sets_, stacks_};
  Waits waits_;
  SetChanges set_changes_{job_, sets_, *this};
  Coordinator coordinator_;
  bool ended_in_abort_ = false;  ///< once the resources are released
};

}  // namespace horoacc
