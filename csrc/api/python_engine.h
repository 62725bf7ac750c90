#pragma once
// The engine as Python sees it: the C contract with Python's types.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "api/horoacc.h"
#include "api/python_outputs.h"
#include "api/python_signals.h"

namespace horoacc::python {

/// A GPU's number, and a stream of it.
using Place = std::pair<int32_t, uintptr_t>;

class Engine {
 public:
  Engine(const std::unordered_map<std::string, std::string>& settings,
         const pybind11::dict& placement);
  // Lets go of the engine if it is shut down; who was told where it is may hold it for longer. But
  // MPI is the process's, and ends with it.
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
  [[nodiscard]] int MpiThreadLevel() const { return ha_mpi_thread_level(engine_); }

  void BeforeFork() { ha_before_fork(engine_); }
  void AfterForkInParent() { ha_after_fork_in_parent(engine_); }
  void AfterForkInChild() { ha_after_fork_in_child(engine_); }

  [[nodiscard]] uintptr_t Lend() {
    lent_ = true;
    return reinterpret_cast<uintptr_t>(engine_);
  }
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
                  const std::optional<std::string>& complaint, const std::optional<Place>& place,
                  bool grouped);
  uint64_t Allreduce(const std::optional<std::string>& name, uintptr_t input, uintptr_t output,
                     const pybind11::tuple& shape, int dtype, int op, double prescale,
                     double postscale, int process_set, pybind11::object keep, bool wait,
                     const std::optional<Place>& place);
  // The results are there for what comes on a GPU's stream from now on.
  void JoinStream(uint64_t handle, uintptr_t stream);
  bool Poll(uint64_t handle);
  void Wait(uint64_t handle, std::optional<double> timeout);
  std::vector<std::unique_ptr<Output>> Outputs(uint64_t handle) {
    return TakeOutputs(engine_, handle);
  }
  // Of a call in flight: later, at a submission that finds it complete.
  void Release(uint64_t handle);

  [[nodiscard]] bool ArenaContains(uintptr_t pointer) const;
  void StartTimeline(const std::string& path, bool mark_cycles);
  void StopTimeline();
  [[nodiscard]] std::unordered_map<std::string, uint64_t> Counters() const;

 private:
  uint64_t Hand(const ha_call& call, std::span<const ha_tensor> tensors, pybind11::object keep);

  void ReleaseLeft();

  ha_engine* engine_ = nullptr;
  bool over_ = false;                                    ///< it is shut down; guarded by the GIL
  bool lent_ = false;                                    ///< guarded by the GIL
  std::unordered_map<uint64_t, pybind11::object> kept_;  // guarded by the GIL
  std::vector<uint64_t> left_;  // released while in flight; guarded by the GIL
};

void BindEngine(pybind11::module_& module);

}  // namespace horoacc::python
