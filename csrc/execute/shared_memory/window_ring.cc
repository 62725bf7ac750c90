#include "execute/shared_memory/window_ring.h"

#include <algorithm>

namespace horoacc {

WindowRing::WindowRing(const SetContext& context, ExecSlot& slot, uint64_t windows, bool stages)
    : context_(context), slot_(slot), windows_(windows), depth_(context.window_depth) {
  uint64_t offset = kNoStaging;
  if (stages && windows > 0) {
    own_ = static_cast<std::byte*>(
        context.staging->Allocate(context.window_bytes * std::min<uint64_t>(depth_, windows)));
    failed_ = own_ == nullptr;
    if (own_) offset = static_cast<uint64_t>(own_ - context.memory[context.me]);
  }
  slot_.rank(context.me).staging.store(offset, std::memory_order_relaxed);
}

WindowRing::~WindowRing() {
  if (own_) context_.free_staging(own_);
}

bool WindowRing::MayExpose() const {
  if (exposed_ >= windows_) return false;
  return exposed_ < depth_ || LeastConsumed() + depth_ > exposed_;
}

void WindowRing::Expose() {
  ++exposed_;
  slot_.rank(context_.me).exposed.store(exposed_, std::memory_order_release);
  context_.ring_others(true);
}

bool WindowRing::AllExposed(uint64_t window) const {
  for (const uint32_t r : context_.present) {
    if (slot_.rank(r).exposed.load(std::memory_order_acquire) <= window) return false;
  }
  return true;
}

std::byte* WindowRing::Place(uint32_t index, uint64_t window) const {
  const uint64_t staging = slot_.rank(index).staging.load(std::memory_order_relaxed);
  return context_.memory[index] + staging + (window % depth_) * context_.window_bytes;
}

void WindowRing::Consume() {
  ++consumed_;
  slot_.rank(context_.me).consumed.store(consumed_, std::memory_order_release);
  context_.ring_others(true);
}

uint64_t WindowRing::LeastConsumed() const {
  uint64_t least = windows_;
  for (const uint32_t r : context_.present) {
    least = std::min(least, slot_.rank(r).consumed.load(std::memory_order_acquire));
  }
  return least;
}

}  // namespace horoacc
