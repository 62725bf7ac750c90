#pragma once
// From a bucket that may run to decisions, on the rank that decides. Both planes use it.
#include <span>
#include <string>
#include <vector>

#include "base/settings.h"
#include "negotiate/assemble_reduce.h"
#include "negotiate/plane.h"
#include "negotiate/set_board.h"

namespace horoacc {

class Decider {
 public:
  Decider(SetBoard& board, const SetContext& context, const Settings& settings)
      : board_(board), context_(context), settings_(settings) {}

  /// Is there an execution slot for whatever one ready tensor can bring about?
  [[nodiscard]] bool HasSlots() const;

  /// One decision for the tensors that all ranks share, one for the others. What is small enough
  /// is reduced here and now: its decision comes with the result.
  [[nodiscard]] std::vector<Decision> Run(std::span<const TensorKey> keys);

 private:
  [[nodiscard]] Decision RunPart(const std::vector<TensorKey>& keys, bool shared);

  SetBoard& board_;
  const SetContext& context_;
  const Settings& settings_;
};

/// Looks for a reason why the rows of all ranks for this generation do not fit together.
struct Disagreement {
  ErrorKind kind = ErrorKind::kOk;
  int culprit = -1;
  std::string text;
};
[[nodiscard]] Disagreement CompareRows(const SetBoard& board, const SetContext& context,
                                       const std::vector<int>& global_ranks, TensorKey key);

/// What a tensor is called in messages: its name, or the operation and number of an unnamed call.
[[nodiscard]] std::string DisplayName(const SetBoard& board, const SetContext& context,
                                      TensorKey key);

}  // namespace horoacc
