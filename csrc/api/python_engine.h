#pragma once
// The engine for Python: the C contract with Python's types.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "api/horoacc.h"

namespace horoacc::python {

/// A GPU's number, and a stream of it.
using Place = std::pair<int32_t, uintptr_t>;

/// A result in memory that the engine allocated: of the host, for Python's buffer protocol, or of a
/// GPU, which `copy_to` copies it from as long as the handle is not released.
struct Output {
  void* data = nullptr;  ///< null: on a GPU
  size_t bytes = 0;
  std::vector<int64_t> shape;
  int dtype = 0;
  std::vector<int64_t> received_splits;
  bool has_splits = false;
  std::function<void(uintptr_t to, uintptr_t stream)> copy_to;
  Output() = default;
  ~Output() { ha_free(data); }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
};

/// How often a signal has asked for a flight record.
[[nodiscard]] uint32_t RecordRequests();

class Engine {
 public:
  Engine(const std::unordered_map<std::string, std::string>& settings,
         const pybind11::dict& placement);
  // Unrefs the engine if it is shut down; other holders of a ref may keep it. An engine with MPI
  // stays until the process ends.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  // Ends its threads and its part in the job.
  void Shutdown();
  void Abandon();
  void FinalizeMpi();
  void WatchStacks(int talk, int signal, int fd, bool heed_requests) {
    ha_stacks(engine_, talk, signal, fd, heed_requests ? RecordRequests : nullptr);
  }
  [[nodiscard]] std::tuple<uint64_t, uint64_t, uint64_t, uint32_t> Tuned() const;
  void Tune(uint64_t fusion_threshold, uint64_t last_arriver_bytes, uint64_t window_bytes,
            uint32_t algorithm, uint64_t trials, uint64_t kept, const std::string& story);
  void ServeReadings(int listener);
  [[nodiscard]] int MpiThreadLevel() const { return ha_mpi_thread_level(engine_); }
  [[nodiscard]] pybind11::bytes ObjectKey() const {
    char key[32];
    return {key, ha_object_key(engine_, key)};
  }

  [[nodiscard]] bool ArenaOver() const { return ha_arena_over(engine_) != 0; }
  void BeforeFork() { ha_before_fork(engine_); }
  void AfterForkInParent() { ha_after_fork_in_parent(engine_); }
  void AfterForkInChild() { ha_after_fork_in_child(engine_); }

  // For bindings, which then may hold a ref to the engine.
  [[nodiscard]] uintptr_t Address() {
    shared_ = true;
    return reinterpret_cast<uintptr_t>(engine_);
  }
  // The capsule of an EngineCalls, which keeps `self` alive.
  [[nodiscard]] static pybind11::object Calls(pybind11::object self);
  [[nodiscard]] pybind11::tuple placement() const;

  int AddProcessSet(const std::vector<int32_t>& ranks, bool own_part);
  void RemoveProcessSet(int id, bool own_part);
  [[nodiscard]] std::vector<int32_t> ProcessSetIds() const;
  [[nodiscard]] pybind11::object ProcessSetRanks(int id) const;
  int ClaimGroup(const std::vector<int32_t>& ranks);
  void JoinGroup(int id, const std::vector<int32_t>& ranks);

  uint64_t Submit(int collective, const pybind11::sequence& tensors, int op, double prescale,
                  double postscale, int root, int process_set,
                  const std::optional<std::vector<int64_t>>& splits, pybind11::object keep,
                  const std::optional<std::string>& validation_error,
                  const std::optional<Place>& place, bool grouped);
  uint64_t Allreduce(const std::optional<std::string>& name, uintptr_t input, uintptr_t output,
                     const pybind11::tuple& shape, int dtype, int op, double prescale,
                     double postscale, int process_set, pybind11::object keep, bool wait,
                     const std::optional<Place>& place);
  // A blocking allreduce of a plain array: false, and nothing was submitted, if it is not one.
  bool ReduceArray(const pybind11::object& input, const pybind11::object& output,
                   const pybind11::object& name, int op, int process_set);
  void Barrier(int process_set);
  // Later work on the GPU's stream finds the results.
  void JoinStream(uint64_t handle, uintptr_t stream);
  bool Poll(uint64_t handle);
  void Wait(uint64_t handle, std::optional<double> timeout);
  // Waits and releases; what ends in an error is not released.
  void Finish(uint64_t handle);
  // Takes the memory that the engine allocated for the members of a complete handle.
  [[nodiscard]] std::vector<std::unique_ptr<Output>> Outputs(uint64_t handle) const;
  // A call in flight is released later, by a submission that finds it complete.
  void Release(uint64_t handle);

  [[nodiscard]] bool ArenaContains(uintptr_t pointer) const;
  void StartTimeline(const std::string& path, bool mark_cycles);
  void StopTimeline();
  [[nodiscard]] std::unordered_map<std::string, uint64_t> Counters() const;

 private:
  uint64_t SubmitCall(const ha_call& call, std::span<const ha_tensor> tensors,
                      pybind11::object keep);
  void RunCall(const ha_call& call, std::span<const ha_tensor> tensors, pybind11::object keep);
  void ReleaseLeft();

  ha_engine* engine_ = nullptr;
  // Guarded by the GIL.
  bool over_ = false;    ///< it is shut down
  bool shared_ = false;  ///< its address was given out
  std::unordered_map<uint64_t, pybind11::object> kept_;
  std::vector<uint64_t> left_;  ///< released while in flight
};

// The parts of the module.
void BindEngine(pybind11::module_& module);  // python_bind_engine.cc
void BindCalls(pybind11::module_& module,
               pybind11::class_<Engine>& engine);  // python_bind_calls.cc
void BindSchedules(pybind11::module_& module);     // python_schedule.cc
void BindSignals(pybind11::module_& module);       // python_signals.cc

}  // namespace horoacc::python
