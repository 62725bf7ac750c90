#pragma once
// Allreduce between hosts of buffers that all ranks of each host see: every host adds its ranks'
// inputs up, hosts exchange these sums by a schedule, and results go to all ranks of the host.
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "execute/chunk_pipeline.h"
#include "execute/execution.h"
#include "execute/kernels/combine.h"
#include "execute/schedule/schedule_run.h"

namespace horoacc {

/// As many ranks of each host as the smallest host has are rails: the k-th rank of each host
/// reduces the k-th part of the bucket with the k-th ranks of the others.
struct Rail {
  uint32_t number = 0;
  uint32_t count = 1;
};

/// The two stages inside a host of one rail's part, slice by slice. Its input is there once the sum
/// over the host's ranks lies in the rail's memory, and its results leave to all ranks' outputs: no
/// output holds anything but results.
class HostSums final : public ChunkPipeline {
 public:
  /// `list`: the pointers of all `ranks` of the host. `wide`: as Payload says.
  HostSums(ReduceList list, uint32_t ranks, Rail rail, bool wide);

  /// Bytes of memory that the sums take.
  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  /// The vector of sums in that memory, to be reduced between hosts.
  [[nodiscard]] Payload PayloadIn(std::byte* memory);
  /// Adds up the next slice.
  [[nodiscard]] Result<uint64_t> Arrived() override;
  [[nodiscard]] Status Leave(uint64_t end) override;
  /// Stores the next slice of the results. False: there is none now.
  bool Store();
  [[nodiscard]] bool stored() const { return stored_.at == bytes_; }

 private:
  /// Elements of one tensor.
  struct Part {
    uint32_t piece = 0;  ///< in the list
    uint64_t first = 0;  ///< element of the tensor
    uint64_t start = 0;  ///< position in the vector
  };
  /// How far one stage has come.
  struct Progress {
    size_t part = 0;
    uint64_t element = 0;  ///< of the part
    uint64_t at = 0;       ///< position in the vector
  };
  template <typename Stage>
  void NextSlice(Progress& progress, uint64_t end, Stage stage);

  const ReduceList list_;
  const uint32_t ranks_;
  std::vector<Part> parts_;
  std::vector<PayloadTensor> tensors_;  ///< by part
  std::vector<DType> partial_types_;    ///< by part
  uint64_t bytes_ = 0;
  std::byte* memory_ = nullptr;
  std::optional<Combiner> combiner_;
  Progress summed_, stored_;
  uint64_t final_ = 0;  ///< up to here the memory holds results
};

class ComposedAllreduce final : public Execution {
 public:
  struct Between {
    DataLinks* links = nullptr;
    std::shared_ptr<const schedule::Schedule> schedule;  ///< over the rail's ranks
    RunGroup group;
    RunOptions options;
    RunMemory memory;
  };
  /// `between`: empty on ranks that are no rail, which wait for the rails of their host.
  static Result<std::unique_ptr<ComposedAllreduce>> Make(const SetContext& context, ExecSlot& slot,
                                                         ReduceList list, Rail rail, bool wide,
                                                         std::optional<Between> between);
  ~ComposedAllreduce() override;

  bool Advance() override;
  [[nodiscard]] bool complete() const override {
    return (!sums_ || told_) && slot_.slices_done.value.load(std::memory_order_acquire) == rails_;
  }
  [[nodiscard]] bool failed() const override { return run_ && run_->failed(); }
  [[nodiscard]] Error failure() const override { return run_->failure(); }

 private:
  ComposedAllreduce(const SetContext& context, ExecSlot& slot, uint32_t rails)
      : context_(context), slot_(slot), rails_(rails) {}

  const SetContext& context_;
  ExecSlot& slot_;  ///< counts rails that have stored all their results
  const uint32_t rails_;
  RunMemory memory_;
  void* block_ = nullptr;
  std::optional<HostSums> sums_;
  std::unique_ptr<ScheduleRun> run_;
  bool told_ = false;
};

}  // namespace horoacc
