#include "execute/shared_memory/exchange.h"

#include <algorithm>
#include <cstring>

#include "execute/kernels/reduce.h"

namespace horoacc {

Exchange::Exchange(const SetContext& context, ExecSlot& slot, std::vector<ExchangePiece> pieces)
    : context_(context),
      pieces_(std::move(pieces)),
      windows_(Cut(context, pieces_)),
      ring_(context, slot, windows_.size(), Stages(context, pieces_)) {
  for (const ExchangePiece& piece : pieces_) {
    shows_shared_ |= piece.shared[context.me] != nullptr && piece.bytes[context.me] > 0;
  }
}

std::vector<Exchange::Window> Exchange::Cut(const SetContext& context,
                                            const std::vector<ExchangePiece>& pieces) {
  std::vector<Window> windows;
  for (uint32_t p = 0; p < pieces.size(); ++p) {
    const ExchangePiece& piece = pieces[p];
    uint64_t longest = 0;
    bool all_shared = true;
    for (uint32_t r = 0; r < context.ranks; ++r) {
      longest = std::max(longest, piece.bytes[r]);
      all_shared = all_shared && (piece.shared[r] != nullptr || piece.bytes[r] == 0);
    }
    const uint64_t step = all_shared ? std::max<uint64_t>(longest, 1) : context.window_bytes;
    for (uint64_t first = 0; first < longest; first += step) {
      windows.push_back({p, first, std::min(first + step, longest)});
    }
  }
  return windows;
}

bool Exchange::Stages(const SetContext& context, const std::vector<ExchangePiece>& pieces) {
  return std::ranges::any_of(pieces, [&](const ExchangePiece& piece) {
    return piece.shared[context.me] == nullptr && piece.bytes[context.me] > 0;
  });
}

bool Exchange::Advance() { return Take() || Show(); }

bool Exchange::complete() const {
  if (ring_.consumed() < ring_.windows()) return false;
  return !shows_shared_ || ring_.AllConsumed();
}

const std::byte* Exchange::Source(const ExchangePiece& piece, uint32_t index,
                                  uint64_t window) const {
  if (piece.shared[index]) return piece.shared[index] + windows_[window].first;
  return ring_.Source(index, window);
}

bool Exchange::Take() {
  const uint64_t w = ring_.consumed();
  if (w >= windows_.size() || !ring_.AllExposed(w)) return false;
  const Window& window = windows_[w];
  const ExchangePiece& piece = pieces_[window.piece];
  for (const ExchangePiece::Copy& copy : piece.copies) {
    const uint64_t first = std::max(copy.from, window.first);
    const uint64_t last = std::min(copy.from + copy.bytes, window.last);
    if (first >= last) continue;
    const std::byte* from = Source(piece, copy.source, w) + (first - window.first);
    std::byte* to = copy.to + (first - copy.from);
    if (to != from) std::memcpy(to, from, last - first);
  }
  for (const ExchangePiece::Shard& shard : piece.shards) {
    const size_t element = SizeOf(shard.type);
    const uint64_t first = std::max(shard.first * element, window.first);
    const uint64_t last = std::min(shard.last * element, window.last);
    if (first >= last) continue;
    std::vector<const void*> sources(context_.ranks);
    for (uint32_t r = 0; r < context_.ranks; ++r) {
      sources[r] = Source(piece, r, w) + (first - window.first);
    }
    void* const to = shard.to + (first - shard.first * element);
    Reduce({sources, {&to, 1}, (last - first) / element, shard.type, shard.op, shard.scale});
  }
  ring_.Consume();
  return true;
}

bool Exchange::Show() {
  if (!ring_.MayExpose()) return false;
  const Window& window = windows_[ring_.exposed()];
  const ExchangePiece& piece = pieces_[window.piece];
  const uint64_t last = std::min(window.last, piece.bytes[context_.me]);
  if (piece.shared[context_.me] == nullptr && window.first < last) {
    std::memcpy(ring_.OwnPlace(), piece.input + window.first, last - window.first);
  }
  ring_.Expose();
  return true;
}

}  // namespace horoacc
