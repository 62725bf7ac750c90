#pragma once
// From a bucket that may run to decisions, on the rank that decides. Both controllers use it.
#include <span>
#include <string>
#include <vector>

#include "base/settings.h"
#include "negotiate/control_segment/assemble_reduce.h"
#include "negotiate/control_segment/set_segment.h"
#include "negotiate/controller.h"

namespace horoacc {

class Decider {
 public:
  Decider(SetSegment& control, const SetContext& context, const Settings& settings)
      : control_(control), context_(context), settings_(settings) {}

  /// Is there an execution slot for whatever one ready tensor can bring about?
  [[nodiscard]] bool HasSlots() const;

  /// One decision for the tensors that all ranks share, one for the others, and Adasum apart. What
  /// is small enough is reduced here and now: its decision comes with the result. Once the set has
  /// ended, a member's memory may be gone: then the decision is an error, whatever makes the
  /// tensors run.
  [[nodiscard]] std::vector<Decision> Run(std::span<const TensorKey> keys);
  /// The same for an allreduce that some ranks have not submitted, because they have joined. It
  /// runs by itself.
  [[nodiscard]] Decision RunPartial(TensorKey key);

 private:
  [[nodiscard]] Decision RunPart(const SetContext& context, std::span<const TensorKey> keys,
                                 bool shared);

  SetSegment& control_;
  const SetContext& context_;
  const Settings& settings_;
};

/// Looks for a reason why the rows of `present` ranks for this generation do not fit together; kOk:
/// none.
[[nodiscard]] Error CompareRows(const SetSegment& control, const SetContext& context,
                                const std::vector<int>& global_ranks, TensorKey key,
                                std::span<const uint32_t> present);

/// Whether the parts of an alltoall that all ranks have submitted fit where they go; kOk also for
/// other collectives. CompareRows does so, too.
[[nodiscard]] Error CompareSplits(const SetSegment& control, const SetContext& context,
                                  const std::vector<int>& global_ranks, TensorKey key);

/// Why a call cannot run that ranks which have joined have not submitted; kOk: it can.
[[nodiscard]] Error NeedsJoined(const SetSegment& control, const std::vector<int>& global_ranks,
                                TensorKey key);

/// What a tensor is called in messages: its name, or the operation and number of an unnamed call.
[[nodiscard]] std::string DisplayName(const SetSegment& control, TensorKey key,
                                      Collective collective);

/// The decision that ends calls with an error.
[[nodiscard]] Decision ErrorDecision(std::span<const TensorKey> keys, const Error& error);

/// What calls end with after their set has ended.
[[nodiscard]] Error EndOfSet(SetEnd end);

}  // namespace horoacc
