#include "execute/kernels/combine.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "execute/kernels/reduce.h"

namespace horoacc {
namespace {

/// Elements of a block: with a handful of operands in the accumulator's type they stay in the L1
/// cache, or nearly so.
constexpr size_t kBlock = 1024;
constexpr size_t kOperandBytes = kBlock * 16;

}  // namespace

void CopyPieces(std::span<const std::span<const std::byte>> from,
                std::span<const std::span<std::byte>> to) {
  PieceCursor<const std::byte> source;
  PieceCursor<std::byte> sink;
  source.Start(from);
  sink.Start(to);
  while (const size_t bytes = std::min(source.InARow(), sink.InARow())) {
    if (source.here() != sink.here()) std::memcpy(sink.here(), source.here(), bytes);
    source.Skip(bytes);
    sink.Skip(bytes);
  }
}

/// Elements of one tensor that lie in a row for all operands and targets; they begin at from_, to_.
struct Combiner::Run {
  const PayloadTensor& tensor;
  DType partial;
  std::span<const Operand> operands;
  size_t count;
  bool finish;

  [[nodiscard]] bool wide() const { return partial != tensor.type; }
  [[nodiscard]] size_t bytes(Form form) const {
    return SizeOf(form == Form::kPartial ? partial : tensor.type);
  }
  [[nodiscard]] Form result() const { return finish ? Form::kElements : Form::kPartial; }
  [[nodiscard]] bool scales(const Operand& operand) const {
    return operand.raw && tensor.scale.pre != 1.0;
  }
  /// The factors after the sum.
  [[nodiscard]] Scale after() const {
    return finish ? Scale{1.0, tensor.scale.post, tensor.scale.divisor} : Scale{};
  }
};

void Combiner::Combine(std::span<const Extent> shape, std::span<const Operand> operands,
                       std::span<const Target> targets, bool finish) {
  sources_.resize(operands.size());
  sinks_.resize(targets.size());
  from_.resize(operands.size());
  to_.resize(targets.size());
  for (size_t k = 0; k < operands.size(); ++k) sources_[k].Start(operands[k].pieces);
  for (size_t k = 0; k < targets.size(); ++k) sinks_[k].Start(targets[k].pieces);
  for (const Extent& extent : shape) {
    Run run{tensors_[extent.tensor], partial_types_[extent.tensor], operands, 0, finish};
    const size_t result = run.bytes(run.result());
    for (uint64_t left = extent.count; left > 0; left -= run.count) {
      run.count = left;
      for (size_t k = 0; k < operands.size(); ++k) {
        run.count = std::min(run.count, sources_[k].InARow() / run.bytes(operands[k].form));
        from_[k] = sources_[k].here();
      }
      for (size_t k = 0; k < targets.size(); ++k) {
        run.count = std::min(run.count, sinks_[k].InARow() / result);
        to_[k] = sinks_[k].here();
      }
      assert(run.count > 0);  // links cut nothing inside an element
      CombineRun(run);
      for (size_t k = 0; k < operands.size(); ++k) {
        sources_[k].Skip(run.count * run.bytes(operands[k].form));
      }
      for (auto& sink : sinks_) sink.Skip(run.count * result);
    }
  }
}

void Combiner::CombineRun(const Run& run) {
  const bool all_raw = std::ranges::all_of(run.operands, [](const Operand& o) { return o.raw; });
  const bool none_scales = std::ranges::none_of(
      run.operands, [&run](const Operand& operand) { return run.scales(operand); });
  const bool one_pass = run.wide() ? all_raw && run.finish : all_raw || none_scales;
  if (!one_pass) return CombineBlocks(run);
  Scale scale = run.after();
  if (!none_scales) scale.pre = run.tensor.scale.pre;
  Reduce({from_, to_, run.count, run.tensor.type, run.tensor.op, scale});
}

void Combiner::CombineBlocks(const Run& run) {
  const DType acc = run.partial;
  const size_t operands = run.operands.size();
  blocks_.resize((operands + 1) * kOperandBytes);
  block_from_.resize(operands);
  for (size_t at = 0; at < run.count; at += kBlock) {
    const size_t count = std::min(kBlock, run.count - at);
    for (size_t k = 0; k < operands; ++k) {
      const Operand& operand = run.operands[k];
      std::byte* block = blocks_.data() + k * kOperandBytes;
      block_from_[k] = static_cast<const std::byte*>(from_[k]) + at * run.bytes(operand.form);
      const auto prescale = [&](DType type, void* to) {
        const Scale before{run.tensor.scale.pre, 1.0, 1.0};
        Reduce({{&block_from_[k], 1}, {&to, 1}, count, type, run.tensor.op, before});
        block_from_[k] = to;
      };
      // The product of a 16-bit float is one again; that of an integer may need more bits.
      const bool rounds = run.wide() && IsFloat(run.tensor.type);
      if (rounds && run.scales(operand)) prescale(run.tensor.type, block + kOperandBytes / 2);
      if (run.wide() && operand.form == Form::kElements) {
        Widen(run.tensor.type, block_from_[k], block, count);
        block_from_[k] = block;
      }
      if (!rounds && run.scales(operand)) prescale(acc, block);
    }
    const size_t result = run.bytes(run.result());
    void* sum = static_cast<std::byte*>(to_.front()) + at * result;
    const bool narrows = run.wide() && run.finish;
    if (narrows) sum = blocks_.data() + operands * kOperandBytes;
    Reduce({block_from_, {&sum, 1}, count, acc, run.tensor.op, run.after()});
    if (narrows) {
      void* const to = static_cast<std::byte*>(to_.front()) + at * result;
      Narrow(run.tensor.type, sum, to, count);
      sum = to;
    }
    for (size_t k = 1; k < to_.size(); ++k) {
      std::memcpy(static_cast<std::byte*>(to_[k]) + at * result, sum, count * result);
    }
  }
}

}  // namespace horoacc
