#pragma once
// Runs a schedule on this rank, over any mix of data links. docs/schedules.md is the contract.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "execute/chunk_pipeline.h"
#include "execute/execution.h"
#include "execute/schedule/payload.h"
#include "execute/schedule/schedule_lane.h"
#include "schedule/schedule.h"
#include "transport/data/data_links.h"
#include "transport/memory/arena.h"

namespace horoacc {

/// The ranks that take part. All ranks give the same, but for `me`.
struct RunGroup {
  uint32_t me = 0;                        ///< this rank's index in the process set
  std::vector<int> ranks;                 ///< rank of the job, by index in the set
  std::vector<uint32_t> member_of_place;  ///< index in the set, by the schedule's numbers
};

/// All ranks give the same: these numbers say how messages are cut.
struct RunOptions {
  CollectiveId collective{};
  uint64_t window_bytes = uint64_t{4} << 20;
  /// Windows that may be in memory of the run (scratch) at a time.
  uint32_t places = 2;
  /// Whole messages that a link holds. With 1, a lane gives a received message back before it waits
  /// to send; from 2 on, lanes go from slot to slot, slice by slice.
  uint32_t depth = 2;
  uint64_t slice_bytes = uint64_t{256} << 10;  ///< about; with a depth of 2 or more
  uint32_t most_slices = 8;                    ///< of a message
};

/// Where scratch lies: in memory that the peers on this host see, if there is any, so that they
/// read messages where they lie.
struct RunMemory {
  Arena* arena = nullptr;             ///< or nullptr: private memory
  std::function<void(void*)> retire;  ///< takes a block of the arena back; empty: Arena::Free
};

/// Lanes are state machines, and Advance gives each a turn of one slice: it never waits in one.
/// Operands are combined in ascending order of their places, along the balanced tree over that
/// many, never in the order of arrival: the result depends on the schedule and on how it was cut,
/// and on nothing else. The engine calls DataLinks::Progress between turns.
class ScheduleRun final : public Execution {
 public:
  /// kInvalid if the payload does not fit the schedule. `links` must outlive the run.
  static Result<std::unique_ptr<ScheduleRun>> Make(
      DataLinks& links, std::shared_ptr<const schedule::Schedule> schedule, const RunGroup& group,
      const RunOptions& options, Payload payload, RunMemory memory);
  ~ScheduleRun() override;

  /// Before the first Advance, of a vector (an allreduce): no window begins before its input is
  /// there, and results leave window by window. `flow` outlives the run.
  void Follow(ChunkPipeline& flow);

  bool Advance() override;
  /// All lanes have ended, and all messages have been taken or have left this rank's memory: no
  /// peer needs anything of this rank any more.
  [[nodiscard]] bool complete() const override { return complete_; }
  [[nodiscard]] bool failed() const override { return error_.has_value(); }
  [[nodiscard]] Error failure() const override { return *error_; }
  /// Why it failed.
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }
  /// For each lane that has not ended, the event for which it waits; for reports of stalls.
  [[nodiscard]] std::string Waiting() const;
  /// Posted by this rank, over all links.
  [[nodiscard]] uint64_t bytes_posted() const;

 private:
  ScheduleRun(ChunkMap map, std::shared_ptr<const schedule::Schedule> schedule,
              const RunOptions& options, RunMemory memory);
  Status Open(DataLinks& links, const RunGroup& group, uint32_t place);
  Status AllocateMemory(uint32_t place);
  [[nodiscard]] bool MayBegin(uint64_t window);
  [[nodiscard]] Result<bool> MovePipeline();

  std::shared_ptr<const schedule::Schedule> schedule_;
  RunMemory memory_;
  std::vector<std::byte> private_memory_;
  void* arena_memory_ = nullptr;
  CollectiveId collective_;
  LaneShared shared_;
  std::vector<std::unique_ptr<SendLink>> senders_;
  std::vector<std::unique_ptr<ReceiveLink>> receivers_;
  std::vector<Lane> lanes_;
  std::optional<Error> error_;
  uint64_t drained_ = 0;               ///< windows whose memory is free again
  ChunkPipeline* pipeline_ = nullptr;  ///< null: all of the input is there
  uint64_t pipeline_at_ = 0;           ///< up to this position its input is there
  uint64_t arrived_ = 0;               ///< windows whose input is there
  uint64_t left_ = 0;                  ///< windows whose results have left
  bool complete_ = false;
};

}  // namespace horoacc
