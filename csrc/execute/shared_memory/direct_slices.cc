#include "execute/shared_memory/direct_slices.h"

#include <algorithm>

#include "execute/kernels/reduce.h"

namespace horoacc {
namespace {

constexpr uint64_t kCacheLine = 64;
constexpr uint64_t kSmallestSlice = 64 << 10;
constexpr uint64_t kLargestSlice = 1 << 20;

constexpr uint32_t kRanksOnStack = 64;

}  // namespace

void DirectSlices::ReduceRange(const SetContext& context, const ReducePiece& piece, uint64_t first,
                               uint64_t last, uint64_t whole_bytes) {
  if (first >= last) return;
  const size_t ranks = context.ranks;
  const size_t present = context.present.size();
  const uint64_t offset = first * SizeOf(piece.type);
  const void* few_sources[kRanksOnStack];
  void* few_destinations[kRanksOnStack];
  std::vector<const void*> many_sources(ranks > kRanksOnStack ? ranks : 0);
  std::vector<void*> many_destinations(many_sources.size());
  const void** sources = many_sources.empty() ? few_sources : many_sources.data();
  void** destinations = many_destinations.empty() ? few_destinations : many_destinations.data();
  for (size_t r = 0; r < ranks; ++r)
    sources[r] = static_cast<const std::byte*>(piece.sources[r]) + offset;
  for (size_t k = 0; k < present; ++k)
    destinations[k] = static_cast<std::byte*>(piece.destinations[k]) + offset;
  Reduce({{sources, ranks},
          {destinations, present},
          last - first,
          piece.type,
          piece.op,
          piece.scale,
          whole_bytes});
}

DirectSlices::DirectSlices(const SetContext& context, ExecSlot& slot, ReduceList list)
    : context_(context), slot_(slot), list_(std::move(list)) {
  starts_.reserve(list_.pieces.size() + 1);
  uint64_t total = 0;
  for (const ReducePiece& piece : list_.pieces) {
    starts_.push_back(total);
    total += piece.bytes();
  }
  starts_.push_back(total);
  // Four slices a rank even out ranks that start late; the bounds keep a claim's cost invisible
  // and a slice in the cache.
  const uint64_t fair = total / (4 * context_.ranks) / kCacheLine * kCacheLine;
  slice_bytes_ = std::clamp(fair, kSmallestSlice, kLargestSlice);
  slices_ = (total + slice_bytes_ - 1) / slice_bytes_;
}

bool DirectSlices::Advance() {
  if (claimed_all_) return false;
  const uint64_t slice = slot_.next_slice.value.fetch_add(1, std::memory_order_relaxed);
  if (slice >= slices_) {
    claimed_all_ = true;
    return false;
  }
  ReduceSlice(slice);
  if (slot_.slices_done.value.fetch_add(1, std::memory_order_acq_rel) + 1 == slices_) {
    context_.ring_others(true);  // coordinators of ranks that took part have results to report
  }
  return true;
}

bool DirectSlices::complete() const {
  return slot_.slices_done.value.load(std::memory_order_acquire) >= slices_;
}

void DirectSlices::ReduceSlice(uint64_t slice) const {
  const uint64_t begin = slice * slice_bytes_;
  const uint64_t end = std::min(begin + slice_bytes_, starts_.back());
  size_t index = std::upper_bound(starts_.begin(), starts_.end() - 1, begin) - starts_.begin() - 1;
  for (; index < list_.pieces.size() && starts_[index] < end; ++index) {
    const ReducePiece& piece = list_.pieces[index];
    const uint64_t bytes = piece.bytes();
    // A slice's edge inside a piece moves up to a whole cache line of that piece; both
    // neighbours round alike, so nothing is lost or done twice.
    const auto edge = [&](uint64_t position) -> uint64_t {
      if (position <= starts_[index]) return 0;
      const uint64_t inside = position - starts_[index];
      return std::min(bytes, (inside + kCacheLine - 1) / kCacheLine * kCacheLine);
    };
    const size_t element = SizeOf(piece.type);
    ReduceRange(context_, piece, edge(begin) / element, edge(end) / element, starts_.back());
  }
}

void DirectSlices::ReduceAll(const SetContext& context, const ReduceList& list) {
  for (const ReducePiece& piece : list.pieces) ReduceRange(context, piece, 0, piece.count, 0);
}

}  // namespace horoacc
