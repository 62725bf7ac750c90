#include "execute/shared_memory/adasum_slices.h"

#include <algorithm>

#include "execute/kernels/adasum.h"

namespace horoacc {
namespace {

uint64_t ChunksOf(const ReducePiece& piece) {
  return (piece.count + kAdasumChunk - 1) / kAdasumChunk;
}

void MultiplyChunk(const ReducePiece& piece, uint32_t ranks, uint64_t chunk, TwoPartSum* products) {
  const uint64_t first = chunk * kAdasumChunk;
  AdasumProducts({piece.sources, ranks}, first, std::min(first + kAdasumChunk, piece.count),
                 piece.type, {products, ProductCount(ranks)});
}

void CombineChunk(const SetContext& context, const ReducePiece& piece, uint64_t chunk,
                  const std::vector<double>& factors) {
  const uint64_t first = chunk * kAdasumChunk;
  AdasumCombine({piece.sources, context.ranks}, factors,
                {piece.destinations, context.present.size()}, first,
                std::min(first + kAdasumChunk, piece.count), piece.type);
}

}  // namespace

AdasumSlices::AdasumSlices(const SetContext& context, ExecSlot& slot, ReduceList list,
                           const std::vector<std::byte*>& untold)
    : context_(context), slot_(slot), list_(std::move(list)), factors_(list_.pieces.size()) {
  uint64_t chunks = 0;
  for (const ReducePiece& piece : list_.pieces) {
    starts_.push_back(chunks);
    chunks += ChunksOf(piece);
  }
  starts_.push_back(chunks);
  const uint64_t owners = context_.present.size();
  const uint64_t places = (chunks + owners - 1) / owners;
  told_at_ = places * ProductCount(context_.ranks) * sizeof(TwoPartSum);
  own_ = static_cast<std::byte*>(
      context_.staging->Allocate(told_at_ + untold.size() * sizeof(uint64_t)));
  failed_ = own_ == nullptr;
  for (size_t t = 0; t < untold.size() && !failed_; ++t) {
    if (list_.pieces[t].count == 0) continue;
    failed_ = !context_.staging->Contains(untold[t]);
    reinterpret_cast<uint64_t*>(own_ + told_at_)[t] =
        static_cast<uint64_t>(untold[t] - context_.memory[context_.me]);
  }
  if (failed_) return;
  knows_all_ = untold.empty();
  RankProgress& mine = slot_.rank(context_.me);
  mine.staging.store(static_cast<uint64_t>(own_ - context_.memory[context_.me]),
                     std::memory_order_relaxed);
  mine.exposed.store(1, std::memory_order_release);
  context_.ring_others(true);
}

// When all chunks are combined, no rank reads products any more.
AdasumSlices::~AdasumSlices() {
  if (own_) context_.free_staging(own_);
}

size_t AdasumSlices::PieceOf(uint64_t chunk) const {
  return std::upper_bound(starts_.begin(), starts_.end() - 1, chunk) - starts_.begin() - 1;
}

TwoPartSum* AdasumSlices::Products(uint64_t chunk) const {
  const uint64_t owners = context_.present.size();
  const uint32_t rank = context_.present[chunk % owners];
  const RankProgress& there = slot_.rank(rank);
  if (there.exposed.load(std::memory_order_acquire) == 0) return nullptr;
  std::byte* const places = context_.memory[rank] + there.staging.load(std::memory_order_relaxed);
  return reinterpret_cast<TwoPartSum*>(places) + chunk / owners * ProductCount(context_.ranks);
}

const std::vector<double>& AdasumSlices::FactorsOf(size_t piece) {
  if (factors_[piece].empty()) {
    std::vector<TwoPartSum> products(ProductCount(context_.ranks));
    for (uint64_t chunk = starts_[piece]; chunk < starts_[piece + 1]; ++chunk)
      AddProducts({Products(chunk), products.size()}, products);
    factors_[piece] = AdasumFactors(products, context_.ranks, list_.pieces[piece].scale);
  }
  return factors_[piece];
}

bool AdasumSlices::AllHaveTold() const {
  return std::ranges::all_of(context_.present, [&](uint32_t rank) {
    return slot_.rank(rank).exposed.load(std::memory_order_acquire) > 0;
  });
}

void AdasumSlices::FindTensors() {
  for (size_t k = 0; k < context_.present.size(); ++k) {
    const uint32_t rank = context_.present[k];
    std::byte* const memory = context_.memory[rank];
    const auto* const told = reinterpret_cast<const uint64_t*>(
        memory + slot_.rank(rank).staging.load(std::memory_order_relaxed) + told_at_);
    for (size_t t = 0; t < list_.pieces.size(); ++t) {
      ReducePiece& piece = list_.pieces[t];
      if (piece.count > 0) piece.sources[rank] = piece.destinations[k] = memory + told[t];
    }
  }
  knows_all_ = true;
}

bool AdasumSlices::Advance() {
  const uint64_t chunks = starts_.back();
  uint64_t unit = slot_.next_slice.value.load(std::memory_order_relaxed);
  if (unit >= 2 * chunks) return false;
  TwoPartSum* const products = unit < chunks ? Products(unit) : nullptr;
  const bool ready = unit < chunks
                         ? products != nullptr && (knows_all_ || AllHaveTold())
                         : slot_.slices_done.value.load(std::memory_order_acquire) >= chunks;
  if (!ready) return false;
  if (!slot_.next_slice.value.compare_exchange_strong(unit, unit + 1, std::memory_order_relaxed)) {
    return true;  // another rank took it; there may be a next one
  }
  if (!knows_all_) FindTensors();  // no rank ends before this unit is done
  const size_t index = PieceOf(unit % chunks);
  const ReducePiece& piece = list_.pieces[index];
  const uint64_t chunk = unit % chunks - starts_[index];
  if (unit < chunks) {
    MultiplyChunk(piece, context_.ranks, chunk, products);
  } else {
    CombineChunk(context_, piece, chunk, FactorsOf(index));
  }
  const uint64_t done = slot_.slices_done.value.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (done == chunks || done == 2 * chunks) context_.ring_others(true);
  return true;
}

bool AdasumSlices::complete() const {
  return slot_.slices_done.value.load(std::memory_order_acquire) >= 2 * starts_.back();
}

void AdasumSlices::CombineAll(const SetContext& context, const ReduceList& list) {
  const uint32_t ranks = context.ranks;
  std::vector<TwoPartSum> products(ProductCount(ranks));
  for (const ReducePiece& piece : list.pieces) {
    std::vector<TwoPartSum> sums(products.size());
    for (uint64_t chunk = 0; chunk < ChunksOf(piece); ++chunk) {
      MultiplyChunk(piece, ranks, chunk, products.data());
      AddProducts(products, sums);
    }
    const std::vector<double> factors = AdasumFactors(sums, ranks, piece.scale);
    for (uint64_t chunk = 0; chunk < ChunksOf(piece); ++chunk)
      CombineChunk(context, piece, chunk, factors);
  }
}

}  // namespace horoacc
