#pragma once
// Makes decisions of the tensors of a bucket that may run, on the rank that decides, for ranks that
// share a control segment.
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/tuned.h"
#include "negotiate/control_segment/assemble_reduce.h"
#include "negotiate/control_segment/set_segment.h"
#include "negotiate/controller.h"

namespace horoacc {

class Decider {
 public:
  /// `global_ranks`: by index, for error texts.
  Decider(SetSegment& control, const SetContext& context, const Tuned& tuned,
          std::vector<int> global_ranks)
      : control_(control),
        context_(context),
        tuned_(tuned),
        global_ranks_(std::move(global_ranks)) {}

  /// Why a call that the `present` ranks have submitted cannot run; kOk: it can. Once the set has
  /// ended, the call cannot run, and no row is read: its rank's memory may be gone.
  [[nodiscard]] Error Refusal(TensorKey key, std::span<const uint32_t> present) const;
  /// A call that is ready on all ranks, for the plan.
  [[nodiscard]] ReadyItem ItemOf(TensorKey key) const;

  /// One decision for the tensors that all ranks share, one for the others, and Adasum apart. A
  /// small allreduce is reduced here and now. Once the set has ended, the decision is an error.
  [[nodiscard]] std::vector<Decision> Run(std::span<const TensorKey> keys);
  /// The same for an allreduce that some ranks have not submitted, because they have joined. It
  /// runs by itself.
  [[nodiscard]] Decision RunPartial(TensorKey key);

 private:
  [[nodiscard]] Decision RunPart(const SetContext& context, std::span<const TensorKey> keys,
                                 bool shared);
  /// The name of a tensor in messages.
  [[nodiscard]] std::string DisplayName(TensorKey key, Collective collective,
                                        uint64_t number) const;

  SetSegment& control_;
  const SetContext& context_;
  const Tuned& tuned_;
  const std::vector<int> global_ranks_;
};

/// The decision that ends calls with an error.
[[nodiscard]] Decision ErrorDecision(std::span<const TensorKey> keys, const Error& error);

/// The error of calls that are pending when their set ends.
[[nodiscard]] Error EndOfSet(SetEnd end);

}  // namespace horoacc
