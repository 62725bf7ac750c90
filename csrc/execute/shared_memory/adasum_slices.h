#pragma once
// Adasum of buffers that all ranks can see, in claimed chunks.
#include <memory>
#include <vector>

#include "execute/execution.h"
#include "execute/kernels/adasum_kernels.h"

namespace horoacc {

/// Two rounds over the chunks of all tensors, each claimed by whichever rank runs: products first,
/// then the combination, which begins when all products are there. Factors belong to a tensor, not
/// to its bucket. The products of chunk k lie in the memory of the ranks that take part, in turn.
class AdasumSlices final : public Execution {
 public:
  /// `untold`: where this rank's tensors lie, in place, if its row did not say: they have come from
  /// a GPU since. Then all ranks tell each other here, and the list has no pointers yet.
  AdasumSlices(const SetContext& context, ExecSlot& slot, ReduceList list,
               const std::vector<std::byte*>& untold = {});
  ~AdasumSlices() override;
  bool Advance() override;
  [[nodiscard]] bool complete() const override;
  [[nodiscard]] bool failed() const override { return failed_; }

  /// Does everything at once, for the last rank to arrive.
  static void CombineAll(const SetContext& context, const ReduceList& list);

 private:
  [[nodiscard]] size_t PieceOf(uint64_t chunk) const;
  /// Where the products of a chunk lie; nullptr until the rank that has the place is here.
  [[nodiscard]] TwoPartSum* Products(uint64_t chunk) const;
  const std::vector<double>& FactorsOf(size_t piece);
  [[nodiscard]] bool AllHaveTold() const;
  /// Takes what all ranks have told of untold tensors.
  void FindTensors();

  const SetContext& context_;
  ExecSlot& slot_;
  ReduceList list_;
  std::vector<uint64_t> starts_;  ///< first chunk of every piece, and the number of chunks
  std::vector<std::vector<double>> factors_;
  std::byte* own_ = nullptr;  ///< products, and from told_at_ on the offsets of untold tensors
  uint64_t told_at_ = 0;
  bool knows_all_ = false;
  bool failed_ = false;
};

}  // namespace horoacc
