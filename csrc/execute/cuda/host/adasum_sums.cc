#include "execute/cuda/host/adasum_sums.h"

#include <algorithm>
#include <utility>

#include "execute/cuda/device/pinned_blocks.h"

namespace horoacc::cuda {
namespace {

constexpr size_t kProductsAtOnce = 2048;  // some hundred microseconds
constexpr uint64_t kNoMemory = ~uint64_t{0};

}  // namespace

AdasumSums::AdasumSums(GpuGroup& group, std::vector<BucketTensor> tensors,
                       std::shared_ptr<PinnedBlocks> blocks, const SetContext& context)
    : group_(group),
      tensors_(std::move(tensors)),
      blocks_(std::move(blocks)),
      context_(context),
      pairs_(ProductCount(group.ranks())),
      own_pairs_((pairs_ + group.ranks() - 1) / group.ranks()),
      told_(group.NextStore()),
      added_(group.NextStore()) {
  uint64_t chunks = 0;
  for (const BucketTensor& tensor : tensors_) {
    starts_.push_back(chunks);
    chunks += (tensor.count + kAdasumChunk - 1) / kAdasumChunk;
  }
  starts_.push_back(chunks);
  lanes_ = (chunks + group.ranks() - 1) / group.ranks() * pairs_ * kPairDoubles;
  for (size_t pair = group.me(); pair < pairs_; pair += group.ranks()) products_.emplace_back();
  const uint64_t sums = tensors_.size() * own_pairs_;
  own_ = blocks_->Take(lanes_ * sizeof(double) + sums * sizeof(TwoPartSum));
  const bool usable = own_ && context_.staging->Contains(own_) && blocks_->IsPinned(own_);
  group_.info(group_.me())
      .sums.store(usable ? static_cast<uint64_t>(own_ - context_.memory[context_.me]) : kNoMemory,
                  std::memory_order_relaxed);
  if (usable) std::fill_n(SumsOf(group_.me(), 0), sums, TwoPartSum());
  group_.Tell(&GpuPeerInfo::stored, told_);
}

// No rank tells anew before all have looked. On GPUs no Adasum ends before all have begun it; by
// the CPU it may, so there all tell that they have looked.
std::optional<bool> AdasumSums::OnAllRanks() {
  if (!group_.AllHave(&GpuPeerInfo::stored, told_)) return std::nullopt;
  bool possible = true;
  for (uint32_t rank = 0; rank < group_.ranks(); ++rank)
    possible = possible && group_.info(rank).sums.load(std::memory_order_relaxed) != kNoMemory;
  if (possible) return true;
  if (!std::exchange(looked_, true)) TellAdded();
  if (!AllHaveAdded()) return std::nullopt;
  return false;
}

// Kernels may still write there. Without an event nobody knows when they have ended: then the block
// is never used again.
AdasumSums::~AdasumSums() {
  if (!own_) return;
  if (auto last = group_.Record(); last.ok()) blocks_->Retire(own_, std::move(last).value());
}

double* AdasumSums::MemoryOf(uint64_t rank) const {
  const GpuPeerInfo& info = group_.info(static_cast<uint32_t>(rank));
  return reinterpret_cast<double*>(context_.memory[rank] +
                                   info.sums.load(std::memory_order_relaxed));
}

Status AdasumSums::Launch(const BucketPart& part, uint64_t first, uint64_t count,
                          ha_cuda_adasum job) const {
  const DType type = tensors_[part.tensor].type;
  std::vector<void*> places;
  for (uint32_t r = 0; r < group_.ranks(); ++r)
    places.push_back(group_.buffer(r) + part.offset + first * SizeOf(type));
  job.sources = places.data();
  job.source_count = places.size();
  job.count = count;
  job.type = static_cast<int>(type);
  job.destinations = places.data();
  return group_.gpu().Call(&ha_cuda_plugin::adasum, group_.stream(),
                           static_cast<const ha_cuda_adasum*>(&job));
}

Status AdasumSums::Multiply(const BucketPart& part) const {
  const uint64_t ranks = group_.ranks();
  const uint64_t unit = SizeOf(tensors_[part.tensor].type);
  const uint64_t count = part.bytes / unit;
  const uint64_t chunk = starts_[part.tensor] + part.first_byte / unit / kAdasumChunk;
  ha_cuda_adasum job{};
  job.begun = part.first_byte / unit % kAdasumChunk;
  job.first = (group_.me() + ranks - chunk % ranks) % ranks;
  job.step = ranks;
  job.sums = LanesOf(chunk + job.first);
  if (job.first * kAdasumChunk >= job.begun + count) return {};
  return Launch(part, 0, count, job);
}

bool AdasumSums::AddSome() {
  for (size_t left = 1 + kProductsAtOnce / own_pairs_; left > 0; --left, ++chunk_) {
    if (chunk_ == starts_.back()) return true;
    while (chunk_ == starts_[tensor_ + 1]) ++tensor_;
    const double* lanes = LanesOf(chunk_) + group_.me() * kPairDoubles;
    for (TwoPartSum& product : products_) {
      product = FoldLanes(lanes);
      lanes += group_.ranks() * kPairDoubles;
    }
    AddProducts(products_, {SumsOf(group_.me(), tensor_), products_.size()});
  }
  return false;
}

bool AdasumSums::WeighNext() {
  const size_t tensor = factors_.size();
  std::vector<TwoPartSum> products;
  for (size_t pair = 0; pair < pairs_; ++pair)
    products.push_back(SumsOf(pair % group_.ranks(), tensor)[pair / group_.ranks()]);
  factors_.push_back(AdasumFactors(products, group_.ranks(), tensors_[tensor].scale));
  return factors_.size() == tensors_.size();
}

Status AdasumSums::Combine(const BucketPart& part) const {
  const uint64_t count = part.bytes / SizeOf(tensors_[part.tensor].type);
  const auto [first, last] = ShardOf(group_, count);
  ha_cuda_adasum job{};
  job.step = 1;
  job.factors = factors_[part.tensor].data();
  return first < last ? Launch(part, first, last - first, job) : Status();
}

}  // namespace horoacc::cuda
