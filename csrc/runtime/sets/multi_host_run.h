#pragma once
// The execution of a decision by ranks that do not all share memory: schedules over data links, and
// functions that run when the schedules have ended.
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "base/settings.h"
#include "execute/chunk_pipeline.h"
#include "execute/execution.h"
#include "negotiate/controller.h"
#include "queue/entry.h"
#include "runtime/sets/multi_host_set.h"
#include "schedule/select.h"

namespace horoacc {

class MultiHostRun final : public Execution {
 public:
  struct Surroundings {
    DataLinks* links = nullptr;
    RunMemory memory;
    const Settings* settings = nullptr;
    uint32_t set = 0;  ///< the process set's number
    /// The copies of the calls, which are then allreduces. Null: their inputs are in memory.
    std::unique_ptr<ChunkPipeline> flow{};
  };
  /// One call, with the facts that its ranks announced. `entry` is null on a rank that has joined,
  /// which gives zeros.
  struct Call {
    const Request* request = nullptr;
    CollectiveEntry* entry = nullptr;
    const CallFacts* facts = nullptr;
  };
  /// `calls`: all allreduces, or one of any other kind. Outputs are allocated in full length.
  static Result<std::unique_ptr<MultiHostRun>> Make(Surroundings surroundings, MultiHostSet& set,
                                                    const std::vector<Call>& calls);

  bool Advance() override;
  [[nodiscard]] bool complete() const override { return complete_; }
  [[nodiscard]] bool failed() const override { return failed_ != nullptr; }
  [[nodiscard]] Error failure() const override { return failed_->failure(); }
  /// The name of the first schedule; "none" if no bytes move.
  [[nodiscard]] std::string_view algorithm() const { return algorithm_; }

 private:
  MultiHostRun(Surroundings surroundings, MultiHostSet& set)
      : surroundings_(std::move(surroundings)), set_(set) {}
  Status AddCalls(const std::vector<Call>& calls);
  Status AddAllreduce(const std::vector<Call>& calls);
  Status AddAdasum(const Call& call);
  Status AddAllgather(const Call& call, size_t t);
  Status AddReducescatter(const Call& call, size_t t);
  Status AddRooted(schedule::Goal goal, const Call& call);
  Status AddAllToAll(const Call& call, size_t t, std::vector<uint64_t> rows);
  Status AddGatherOrScatter(const Call& call, size_t t);
  Status Add(schedule::Goal goal, uint64_t bytes, uint32_t root, Payload payload,
             const Way& way = {});
  Result<PayloadTensor> TensorOf(const Call& call, size_t t);
  Result<std::byte*> Allocate(uint64_t bytes);
  [[nodiscard]] bool canonical() const { return surroundings_.settings->reduction == "canonical"; }
  [[nodiscard]] uint32_t IndexOfRoot(const Call& call) const;

  const Surroundings surroundings_;
  MultiHostSet& set_;
  std::string_view algorithm_ = "none";
  std::vector<OwnedMemory> scratch_;
  std::vector<std::shared_ptr<const std::byte>> zeros_;
  std::vector<std::unique_ptr<ScheduleRun>> runs_;
  std::vector<std::function<void()>> afterwards_;
  const ScheduleRun* failed_ = nullptr;
  bool complete_ = false;
};

}  // namespace horoacc
