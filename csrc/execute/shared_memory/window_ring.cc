#include "execute/shared_memory/window_ring.h"

#include <algorithm>

namespace horoacc {

WindowRing::WindowRing(const SetContext& context, ExecSlot& slot, uint64_t windows, bool stages,
                       Places places)
    : context_(context), slot_(slot), windows_(windows), places_(places) {
  uint64_t offset = kNoStaging;
  if (stages && windows > 0) {
    own_ = static_cast<std::byte*>(
        context.staging->Allocate(places.bytes * std::min(places.depth, windows)));
    failed_ = own_ == nullptr;
    if (own_) offset = static_cast<uint64_t>(own_ - context.memory[context.me]);
  }
  slot_.rank(context.me).staging.store(offset, std::memory_order_relaxed);
}

WindowRing::~WindowRing() {
  if (own_) context_.free_staging(own_);
}

void WindowRing::Expose() {
  ++exposed_;
  slot_.rank(context_.me).exposed.store(exposed_, std::memory_order_release);
  context_.ring_others(true);
}

std::byte* WindowRing::Place(uint32_t index, uint64_t window) const {
  const uint64_t staging = slot_.rank(index).staging.load(std::memory_order_relaxed);
  return context_.memory[index] + staging + (window % places_.depth) * places_.bytes;
}

void WindowRing::ConsumeTo(uint64_t window) {
  if (window == consumed_) return;
  consumed_ = window;
  slot_.rank(context_.me).consumed.store(consumed_, std::memory_order_release);
  context_.ring_others(true);
}

}  // namespace horoacc
