#pragma once
// Reduces operands that lie in pieces, and are inputs or unfinished sums, in one pass.
#include <cstddef>
#include <span>
#include <vector>

#include "execute/schedule/payload.h"

namespace horoacc {

/// Pieces of memory that are read or written one after the other.
template <typename Byte>
class PieceCursor {
 public:
  void Start(std::span<const std::span<Byte>> pieces) {
    pieces_ = pieces;
    index_ = 0;
    offset_ = 0;
  }
  /// Bytes that lie in a row from here on; 0 at the end.
  [[nodiscard]] size_t InARow() {
    while (index_ < pieces_.size() && offset_ == pieces_[index_].size()) {
      ++index_;
      offset_ = 0;
    }
    return index_ < pieces_.size() ? pieces_[index_].size() - offset_ : 0;
  }
  [[nodiscard]] Byte* here() const { return pieces_[index_].data() + offset_; }
  void Skip(size_t bytes) { offset_ += bytes; }

 private:
  std::span<const std::span<Byte>> pieces_;
  size_t index_ = 0;
  size_t offset_ = 0;
};

/// Copies `from` to `to`, which are equally long, but for parts that lie there already.
void CopyPieces(std::span<const std::span<const std::byte>> from,
                std::span<const std::span<std::byte>> to);

struct Operand {
  std::span<const std::span<const std::byte>> pieces;
  Form form = Form::kElements;
  bool raw = false;  ///< an input, on which the factor before the sum belongs
};

struct Target {
  std::span<const std::span<std::byte>> pieces;
};

/// Scratch memory of a reduction in blocks; keep it for the next one.
class Combiner {
 public:
  /// By number: the tensors, and the types of their unfinished sums. Both outlive it.
  Combiner(std::span<const PayloadTensor> tensors, std::span<const DType> partial_types)
      : tensors_(tensors), partial_types_(partial_types) {}

  /// Every target becomes the reduction of the operands, in the order given, along the balanced
  /// tree over that many (reduce.h); of one operand it is that operand, with the factors that are
  /// due. `shape`: the tensors that they all are parts of. `finish`: the sum is complete; the
  /// factor after it is applied and the targets hold elements, otherwise unfinished sums.
  void Combine(std::span<const Extent> shape, std::span<const Operand> operands,
               std::span<const Target> targets, bool finish);

 private:
  struct Run;
  void CombineRun(const Run& run);
  void CombineBlocks(const Run& run);

  std::span<const PayloadTensor> tensors_;
  std::span<const DType> partial_types_;
  std::vector<PieceCursor<const std::byte>> sources_;
  std::vector<PieceCursor<std::byte>> sinks_;
  std::vector<const void*> from_, block_from_;
  std::vector<void*> to_;
  std::vector<std::byte> blocks_;
};

}  // namespace horoacc
