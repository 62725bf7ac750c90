#pragma once
// Everything in which a rank takes parts of its peers' inputs straight into its own output.
#include <memory>
#include <vector>

#include "execute/execution.h"
#include "execute/shared_memory/window_ring.h"

namespace horoacc {

/// One tensor of an exchange. Rank r shows the bytes of its input; this rank takes from them the
/// parts that `copies` and `shards` name.
struct ExchangePiece {
  /// By index: size of the rank's input, and where it lies if it is shared (else nullptr).
  std::vector<uint64_t> bytes;
  std::vector<const std::byte*> shared;
  const std::byte* input = nullptr;  ///< this rank's own, private or shared

  /// Bytes [from, from+bytes) of rank `source` go to `to`.
  struct Copy {
    uint32_t source;
    uint64_t from;
    uint64_t bytes;
    std::byte* to;
  };
  std::vector<Copy> copies;

  /// Elements [first, last) of the reduction over all ranks go to `to`.
  struct Shard {
    DType type = DType::kFloat32;
    ReduceOp op = ReduceOp::kSum;
    Scale scale;
    uint64_t first = 0, last = 0;
    std::byte* to = nullptr;
  };
  std::vector<Shard> shards;
};

/// All-gather, broadcast, all-to-all, reduce-scatter; also the flat allreduce, in which every
/// rank's shard is everything: on two ranks it moves fewer bytes than two phases (5S against 5.5S)
/// and needs one synchronisation a window instead of two.
///
/// Inputs that all ranks can see are read where they lie; the others pass through window rings.
class Exchange final : public Execution {
 public:
  Exchange(const SetContext& context, ExecSlot& slot, std::vector<ExchangePiece> pieces);
  bool Advance() override;
  /// A shared input may still be read by slower peers; a private one never is.
  [[nodiscard]] bool complete() const override;
  [[nodiscard]] bool finished() const override { return ring_.AllConsumed(); }
  [[nodiscard]] bool failed() const override { return ring_.failed(); }

 private:
  struct Window {
    uint32_t piece;
    uint64_t first, last;  ///< bytes
  };
  static std::vector<Window> Cut(const SetContext& context,
                                 const std::vector<ExchangePiece>& pieces);
  static bool Stages(const SetContext& context, const std::vector<ExchangePiece>& pieces);

  bool Take();
  bool Show();
  [[nodiscard]] const std::byte* Source(const ExchangePiece& piece, uint32_t index,
                                        uint64_t window) const;

  const SetContext& context_;
  std::vector<ExchangePiece> pieces_;
  std::vector<Window> windows_;
  WindowRing ring_;
  bool shows_shared_ = false;
};

}  // namespace horoacc
