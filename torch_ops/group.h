#pragma once
// One process group of torch.distributed: a process set of the core, and tensors that outlive
// calls.
#include <ATen/core/Tensor.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "api/engine_ref.h"
#include "api/horoacc.h"

namespace horoacc {

/// Shared by the backend and its works; the last owner leaves the set. Thread-safe.
class Group {
 public:
  /// `ranks`: global, ascending. The set must be joined already. `backend`: what torch says that
  /// the group's backend is.
  Group(ha_engine* engine, int32_t process_set, std::vector<int32_t> ranks, int rank,
        double limit_seconds, std::string name, std::string backend);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  [[nodiscard]] ha_engine* engine() const { return engine_.get(); }
  [[nodiscard]] int32_t process_set() const { return process_set_; }
  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] const std::string& backend() const { return backend_; }
  /// The global rank of a rank of the group, or -1.
  [[nodiscard]] int32_t GlobalRank(int64_t rank) const;
  /// The rank in the group of a global rank, or -1.
  [[nodiscard]] int LocalRank(int32_t global_rank) const;
  [[nodiscard]] double limit_seconds() const { return limit_seconds_; }
  void set_limit_seconds(double seconds) { limit_seconds_ = seconds; }
  uint64_t NextSequence() { return sequence_++; }
  [[nodiscard]] uint64_t sequence() const { return sequence_; }

  /// Ends undecided calls, on all members. Idempotent.
  void Leave();
  /// Keeps tensors alive until a call is complete whose work object is gone.
  void Adopt(ha_handle handle, std::vector<at::Tensor> tensors);
  /// Frees the tensors of such calls that are complete.
  void Sweep();

  /// Throws torch's exception for an error of the core.
  [[noreturn]] void Throw(const ha_error& error) const;

 private:
  struct Orphan {
    ha_handle handle;
    std::vector<at::Tensor> tensors;
  };

  const EngineRef engine_;
  const int32_t process_set_;
  const std::vector<int32_t> ranks_;
  const int rank_;
  const std::string name_;
  const std::string backend_;
  const pid_t process_;  ///< a forked child has no part in the job
  std::atomic<double> limit_seconds_;
  std::atomic<uint64_t> sequence_{0};
  std::atomic<bool> left_{false};
  std::atomic<bool> has_orphans_{false};
  std::mutex orphans_mutex_;
  std::vector<Orphan> orphans_;
};

}  // namespace horoacc
