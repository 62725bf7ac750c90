#include "execute/shared_memory/two_phase.h"

#include <algorithm>
#include <cstring>

#include "execute/kernels/reduce.h"

namespace horoacc {

TwoPhaseWindows::TwoPhaseWindows(const SetContext& context, ExecSlot& slot,
                                 std::vector<ReducePiece> pieces)
    : context_(context),
      slot_(slot),
      pieces_(std::move(pieces)),
      windows_(Cut(pieces_, context.window_bytes)),
      ring_(context, slot, windows_.size(), true),
      slices_per_window_(std::clamp<uint64_t>(context.window_bytes >> 16, 1, context.ranks)) {}

std::vector<TwoPhaseWindows::Window> TwoPhaseWindows::Cut(const std::vector<ReducePiece>& pieces,
                                                          uint64_t window_bytes) {
  std::vector<Window> windows;
  for (uint32_t p = 0; p < pieces.size(); ++p) {
    const uint64_t step = window_bytes / SizeOf(pieces[p].type);
    for (uint64_t first = 0; first < pieces[p].count; first += step) {
      windows.push_back({p, first, std::min(first + step, pieces[p].count)});
    }
  }
  return windows;
}

// Copies out before it copies in: the window that is nearest to its end is in the cache.
bool TwoPhaseWindows::Advance() { return CopyOut() || ReduceSlice() || CopyIn(); }

uint64_t TwoPhaseWindows::DoneCountOf(uint64_t window) const {
  return (window / context_.window_depth + 1) * slices_per_window_;
}

bool TwoPhaseWindows::CopyOut() {
  const uint64_t w = ring_.consumed();
  if (w >= windows_.size()) return false;
  const auto& done = slot_.window_done[w % context_.window_depth].value;
  if (done.load(std::memory_order_acquire) < DoneCountOf(w)) return false;
  const Window& window = windows_[w];
  const ReducePiece& piece = pieces_[window.piece];
  const size_t element = SizeOf(piece.type);
  std::memcpy(static_cast<std::byte*>(piece.output) + window.first * element,
              ring_.Place(HolderOf(w), w), (window.last - window.first) * element);
  ring_.Consume();
  return true;
}

bool TwoPhaseWindows::ReduceSlice() {
  uint64_t slice = slot_.next_slice.value.load(std::memory_order_relaxed);
  const uint64_t w = slice / slices_per_window_;
  if (w >= windows_.size() || !ring_.AllExposed(w)) return false;
  if (!slot_.next_slice.value.compare_exchange_strong(slice, slice + 1,
                                                      std::memory_order_relaxed)) {
    return true;  // another rank took it; there may be a next one
  }
  const Window& window = windows_[w];
  const ReducePiece& piece = pieces_[window.piece];
  const size_t element = SizeOf(piece.type);
  const uint64_t count = window.last - window.first;
  const uint64_t part = slice % slices_per_window_;
  // Whole cache lines, so that no two ranks write one.
  const uint64_t line = std::max<uint64_t>(1, 64 / element);
  const auto edge = [&](uint64_t k) {
    return std::min(count, (count * k / slices_per_window_ + line - 1) / line * line);
  };
  const uint64_t first = edge(part);
  const uint64_t last = part + 1 == slices_per_window_ ? count : edge(part + 1);
  if (first < last) {
    std::vector<const void*> sources(context_.ranks);
    for (uint32_t r = 0; r < context_.ranks; ++r) sources[r] = ring_.Source(r, w) + first * element;
    void* const sum = ring_.Place(HolderOf(w), w) + first * element;
    Reduce({sources, {&sum, 1}, last - first, piece.type, piece.op, piece.scale});
  }
  auto& done = slot_.window_done[w % context_.window_depth].value;
  if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == DoneCountOf(w))
    context_.ring_others(true);
  return true;
}

bool TwoPhaseWindows::CopyIn() {
  if (!ring_.MayExpose()) return false;
  const Window& window = windows_[ring_.exposed()];
  const ReducePiece& piece = pieces_[window.piece];
  const size_t element = SizeOf(piece.type);
  std::memcpy(ring_.OwnPlace(), static_cast<const std::byte*>(piece.input) + window.first * element,
              (window.last - window.first) * element);
  ring_.Expose();
  return true;
}

}  // namespace horoacc
