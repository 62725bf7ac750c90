#pragma once
// The part of a bucket that one rail of a host reduces with the same rails of the other hosts.
#include <cstdint>
#include <span>
#include <vector>

#include "execute/execution.h"
#include "execute/kernels/combine.h"
#include "execute/schedule/payload.h"

namespace horoacc {

/// As many ranks of each host as the smallest host has are rails: the k-th rank of each host
/// reduces the k-th part of the bucket with the k-th ranks of the others.
struct Rail {
  uint32_t number = 0;
  uint32_t count = 1;
};

/// Positions are bytes of the vector of the part's sums, in which every tensor begins at a multiple
/// of 64. All hosts cut alike.
class RailPart {
 public:
  /// `wide`: as Payload says.
  RailPart(std::span<const ReducePiece> pieces, Rail rail, bool wide);
  RailPart(RailPart&&) = default;

  /// Length of the vector of sums.
  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  /// The vector of sums that lies in that memory, to be reduced between hosts.
  [[nodiscard]] Payload PayloadIn(std::byte* memory) const;

  /// How far a stage has come.
  struct Progress {
    size_t section = 0;
    uint64_t element = 0;  ///< of the section
    uint64_t at = 0;       ///< position
  };
  /// Elements of one tensor.
  struct Slice {
    size_t section = 0;
    uint32_t piece = 0;   ///< in the list of pieces
    uint64_t offset = 0;  ///< bytes from the tensor's beginning
    uint64_t count = 0;
    uint64_t bytes = 0;      ///< of the elements
    uint64_t at = 0;         ///< position of their sums
    uint64_t sum_bytes = 0;  ///< of the sums
  };
  /// The next slice, not beyond position `end`, which lies after `progress.at`.
  [[nodiscard]] Slice Next(Progress& progress, uint64_t end) const;
  /// The sum over `inputs`, each of them `slice.bytes` long.
  void Sum(const Slice& slice, std::span<const std::byte* const> inputs, std::byte* sums);
  /// The results from the sums over all hosts, with the factors that are due.
  void Finish(const Slice& slice, const std::byte* sums, std::span<std::byte* const> outputs);

 private:
  /// What the part has of one tensor.
  struct Section {
    uint32_t piece = 0;
    uint64_t first = 0;  ///< element of the tensor
    uint64_t start = 0;  ///< position
  };
  std::vector<Section> sections_;
  std::vector<PayloadTensor> tensors_;  ///< by section
  std::vector<DType> partial_types_;    ///< by section
  uint64_t bytes_ = 0;
  Combiner combiner_;
  std::vector<std::span<const std::byte>> sources_;
  std::vector<std::span<std::byte>> sinks_;
  std::vector<Operand> operands_;
  std::vector<Target> targets_;
};

}  // namespace horoacc
