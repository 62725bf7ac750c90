#include "execute/cuda/host/bucket.h"

#include <algorithm>
#include <utility>

namespace horoacc::cuda {
namespace {

constexpr uint64_t kRunAlignment = 256;  // of each kind; so windows end at multiples of 8 elements
constexpr uint64_t kTensorAlignment = 16;  // so that a GPU's thread moves 16 bytes at once
constexpr uint64_t kShardUnit = 64;        // elements; whole runs of 16 bytes of every type

bool IsMoreOf(const BucketRun& run, const BucketTensor& tensor) {
  return run.type == tensor.type && run.op == tensor.op && run.scale == tensor.scale &&
         run.op != ReduceOp::kAdasum;
}

uint64_t EndOf(const BucketWindow& window) {
  if (window.runs.empty()) return 0;
  const BucketRun& last = window.runs.back();
  return last.offset + last.count * SizeOf(last.type);
}

}  // namespace

std::vector<BucketWindow> CutBucket(const std::vector<BucketTensor>& tensors, size_t window_bytes) {
  std::vector<BucketWindow> windows(1);
  for (size_t t = 0; t < tensors.size(); ++t) {
    const BucketTensor& tensor = tensors[t];
    const uint64_t unit = SizeOf(tensor.type);
    for (uint64_t done = 0; done < tensor.count;) {
      BucketWindow* window = &windows.back();
      uint64_t at = EndOf(*window);
      bool more = !window->runs.empty() && IsMoreOf(window->runs.back(), tensor);
      const uint64_t alignment = more ? kTensorAlignment : kRunAlignment;
      at = (at + alignment - 1) / alignment * alignment;
      if (at + unit > window_bytes) {
        window = &windows.emplace_back();
        at = 0;
        more = false;
      }
      const uint64_t count = std::min(tensor.count - done, (window_bytes - at) / unit);
      if (!more) window->runs.push_back({at, 0, tensor.type, tensor.op, tensor.scale});
      BucketRun& run = window->runs.back();
      run.count = (at - run.offset) / unit + count;
      window->parts.push_back({t, done * unit, count * unit, at});
      done += count;
    }
  }
  return windows;
}

std::pair<uint64_t, uint64_t> ShardOf(const GpuGroup& group, uint64_t count) {
  const uint64_t units = (count + kShardUnit - 1) / kShardUnit;
  const auto edge = [&](uint64_t rank) {
    return std::min(count, units * rank / group.ranks() * kShardUnit);
  };
  return {edge(group.me()), edge(uint64_t{group.me()} + 1)};
}

Bucket::Bucket(GpuGroup& group, std::vector<BucketTensor> tensors, uint32_t slots)
    : group_(group),
      tensors_(std::move(tensors)),
      windows_(CutBucket(tensors_, group.buffer_bytes() / slots)),
      first_(group.line().Reserve(windows_.size())) {
  for (size_t w = 0; w < windows_.size(); ++w) {
    const uint64_t slot = number(w) % slots * (group.buffer_bytes() / slots);
    for (BucketPart& part : windows_[w].parts) part.offset += slot;
    for (BucketRun& run : windows_[w].runs) run.offset += slot;
  }
}

Status Bucket::Move(size_t window, bool packs) const {
  std::vector<ha_cuda_tensor> moves;
  for (const BucketPart& part : windows_[window].parts) {
    const BucketTensor& tensor = tensors_[part.tensor];
    std::byte* const there = group_.buffer(group_.me()) + part.offset;
    if (packs) {
      moves.push_back({tensor.input + part.first_byte, there, part.bytes});
    } else {
      moves.push_back({there, tensor.output + part.first_byte, part.bytes});
    }
  }
  return group_.Copy(moves);
}

Status Bucket::Reduce(const BucketRun& run, uint64_t first, uint64_t last, void* stream) const {
  if (first >= last) return {};
  std::vector<void*> places;
  for (uint32_t r = 0; r < group_.ranks(); ++r)
    places.push_back(group_.buffer(r) + run.offset + first * SizeOf(run.type));
  return group_.Reduce({places, places, last - first, run.type, run.op, run.scale}, stream);
}

Status Bucket::ReduceAll(size_t window, void* stream) const {
  for (const BucketRun& run : windows_[window].runs) HA_TRY(Reduce(run, 0, run.count, stream));
  return {};
}

Status Bucket::ReduceShard(size_t window, void* stream) const {
  for (const BucketRun& run : windows_[window].runs) {
    const auto [first, last] = ShardOf(group_, run.count);
    HA_TRY(Reduce(run, first, last, stream));
  }
  return {};
}

}  // namespace horoacc::cuda
