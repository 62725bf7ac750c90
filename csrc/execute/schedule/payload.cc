#include "execute/schedule/payload.h"

#include <algorithm>
#include <string>
#include <utility>

#include "execute/kernels/reduce.h"

namespace horoacc {

using schedule::Buffer;
using schedule::Goal;

namespace {

bool Reduces(Goal goal) {
  return goal == Goal::kAllreduce || goal == Goal::kReduceScatter || goal == Goal::kReduce;
}

bool HasShards(Goal goal) {
  return goal == Goal::kReduceScatter || goal == Goal::kAllGather || goal == Goal::kAllToAll;
}

}  // namespace

DType PartialTypeOf(const PayloadTensor& tensor, bool wide) {
  const bool half = tensor.type == DType::kFloat16 || tensor.type == DType::kBFloat16;
  const bool scaled = tensor.scale != Scale{};
  return (half ? wide : scaled) ? AccumulatorOf(tensor.type) : tensor.type;
}

ChunkMap::ChunkMap(const schedule::Schedule& schedule, uint32_t place,
                   std::vector<uint32_t> members, Payload payload)
    : schedule_(&schedule),
      facts_(schedule.facts()),
      place_(place),
      members_(std::move(members)),
      payload_(std::move(payload)),
      reduces_(Reduces(facts_.goal)),
      shards_(HasShards(facts_.goal)) {
  for (const PayloadTensor& tensor : payload_.tensors) {
    partial_types_.push_back(PartialTypeOf(tensor, payload_.wide));
    if (reduces_) {
      widest_ = std::max<uint64_t>(widest_, SizeOf(partial_types_.back()) / SizeOf(tensor.type));
    }
  }
}

Result<ChunkMap> ChunkMap::Make(const schedule::Schedule& schedule, uint32_t place,
                                const std::vector<uint32_t>& members, Payload payload,
                                uint64_t window_bytes) {
  ChunkMap map(schedule, place, members, std::move(payload));
  if (members.size() != map.facts_.ranks || place >= map.facts_.ranks) {
    return MakeError(ErrorKind::kInvalid, "the schedule is for " +
                                              std::to_string(map.facts_.ranks) + " ranks, not " +
                                              std::to_string(members.size()));
  }
  if (map.reduces_) {
    for (const PayloadTensor& tensor : map.payload_.tensors) {
      HA_TRY(CheckReducible(tensor.type, tensor.op));
    }
  }
  HA_TRY(map.shards_ ? map.CutShards(window_bytes) : map.CutVector(window_bytes));
  return map;
}

Status ChunkMap::CutVector(uint64_t window_bytes) {
  if (!payload_.sizes.empty()) {
    return MakeError(ErrorKind::kInvalid, "a table of sizes where every rank has the whole vector");
  }
  uint64_t total = 0;
  for (const PayloadTensor& tensor : payload_.tensors) {
    starts_.push_back(total);
    total += RoundUpToGrain(tensor.count * SizeOf(tensor.type));
  }
  starts_.push_back(total);
  // Windows of one size, and chunks at the same places in all of them: the first is nowhere shorter
  // than another one.
  const uint64_t at_most = std::max(RoundUpToGrain(window_bytes), kGrain);
  const uint64_t wanted = std::max<uint64_t>((total + at_most - 1) / at_most, 1);
  window_bytes_ = std::max(RoundUpToGrain((total + wanted - 1) / wanted), kGrain);
  windows_ = (total + window_bytes_ - 1) / window_bytes_;
  chunk_bytes_ = RoundUpToGrain((window_bytes_ + facts_.chunks - 1) / facts_.chunks);
  return {};
}

Status ChunkMap::CutShards(uint64_t window_bytes) {
  const uint64_t ranks = facts_.ranks;
  const uint64_t expected = facts_.goal == Goal::kAllToAll ? ranks * ranks : ranks;
  if (payload_.tensors.size() != 1 || payload_.sizes.size() != expected) {
    return MakeError(ErrorKind::kInvalid, "one tensor and " + std::to_string(expected) +
                                              " sizes are needed, not " +
                                              std::to_string(payload_.tensors.size()) + " and " +
                                              std::to_string(payload_.sizes.size()));
  }
  const uint64_t element = SizeOf(payload_.tensors.front().type);
  const uint64_t longest = *std::ranges::max_element(payload_.sizes) * element;
  window_bytes_ = std::max(RoundUpToGrain(window_bytes / facts_.chunks), kGrain);
  window_bytes_ = std::min(window_bytes_, std::max(RoundUpToGrain(longest), kGrain));
  windows_ = (longest + window_bytes_ - 1) / window_bytes_;
  chunk_bytes_ = window_bytes_;
  std::vector<uint32_t> places(ranks);
  for (uint32_t p = 0; p < ranks; ++p) places[members_[p]] = p;
  in_.resize(ranks);
  out_.resize(ranks);
  uint64_t in = 0;
  uint64_t out = 0;
  // Where a goal has one shard only, it is all of that buffer.
  for (const uint32_t p : places) {
    in_[p] = facts_.goal == Goal::kAllGather ? 0 : in;
    out_[p] = facts_.goal == Goal::kReduceScatter ? 0 : out;
    in += ShardSize(place_, p) * element;
    out += ShardSize(p, place_) * element;
  }
  return {};
}

uint64_t ChunkMap::ShardSize(uint32_t from, uint32_t to) const {
  switch (facts_.goal) {
    case Goal::kAllToAll:
      return payload_.sizes[members_[from] * facts_.ranks + members_[to]];
    case Goal::kAllGather:
      return payload_.sizes[members_[from]];
    default:
      return payload_.sizes[members_[to]];
  }
}

void ChunkMap::Append(const Where& where, std::vector<Extent>& extents) const {
  if (shards_) return AppendOfShard(where, extents);
  const bool scratch = where.buffer == Buffer::kScratch;
  const uint32_t chunk = scratch ? schedule_->kept(place_, where.chunk).chunk : where.chunk;
  AppendOfVector(where, chunk, extents);
}

void ChunkMap::AppendOfVector(const Where& where, uint32_t chunk,
                              std::vector<Extent>& extents) const {
  const uint64_t begin = where.window * window_bytes_;
  const uint64_t end = std::min(begin + window_bytes_, starts_.back());
  const uint64_t low = std::min(begin + chunk * chunk_bytes_, end);
  const uint64_t high = std::min(low + chunk_bytes_, end);
  std::byte* apart = where.apart == nullptr ? nullptr : where.apart + where.chunk * chunk_bytes();
  size_t index = std::upper_bound(starts_.begin(), starts_.end() - 1, low) - starts_.begin() - 1;
  for (; index < payload_.tensors.size() && starts_[index] < high; ++index) {
    const PayloadTensor& tensor = payload_.tensors[index];
    const uint64_t element = SizeOf(tensor.type);
    const uint64_t bytes = tensor.count * element;
    const uint64_t first = std::min(std::max(low, starts_[index]) - starts_[index], bytes);
    const uint64_t last = std::min(high - starts_[index], bytes);
    if (first >= last) continue;
    const uint64_t count = (last - first) / element;
    const auto number = static_cast<uint32_t>(index);
    if (apart != nullptr) {
      extents.push_back({number, count, apart});
      apart += RoundUpToGrain(count * element_bytes(number, where.form));
    } else {
      const void* base = where.buffer == Buffer::kInput ? tensor.input : tensor.output;
      auto* data = const_cast<std::byte*>(static_cast<const std::byte*>(base));
      // A caller that asks for lengths only may have no such memory.
      extents.push_back({number, count, data == nullptr ? nullptr : data + first});
    }
  }
}

void ChunkMap::AppendOfShard(const Where& where, std::vector<Extent>& extents) const {
  const PayloadTensor& tensor = payload_.tensors.front();
  const uint64_t element = SizeOf(tensor.type);
  uint32_t from = place_;
  uint32_t to = where.chunk;
  if (where.buffer == Buffer::kScratch) {
    const schedule::Part part = schedule_->kept(place_, where.chunk);
    from = part.source;
    to = part.chunk;
  }
  // An all-gather's chunk is its source's; an output's of an all-to-all came from that rank.
  if (facts_.goal == Goal::kAllGather) from = to;
  if (facts_.goal == Goal::kAllToAll && where.buffer == Buffer::kOutput) {
    from = where.chunk;
    to = place_;
  }
  const uint64_t bytes = ShardSize(from, to) * element;
  const uint64_t first = std::min(where.window * window_bytes_, bytes);
  const uint64_t last = std::min(first + window_bytes_, bytes);
  std::byte* data = nullptr;
  if (where.apart != nullptr) {
    data = where.apart + where.chunk * chunk_bytes();
  } else if (where.buffer == Buffer::kInput) {
    data = const_cast<std::byte*>(static_cast<const std::byte*>(tensor.input)) + in_[where.chunk] +
           first;
  } else if (where.buffer == Buffer::kOutput) {
    data = static_cast<std::byte*>(tensor.output) + out_[where.chunk] + first;
  }
  if (first < last) extents.push_back({0, (last - first) / element, data});
}

uint64_t ChunkMap::BytesOf(const std::vector<Extent>& extents, Form form) const {
  uint64_t bytes = 0;
  for (const Extent& extent : extents) bytes += extent.count * element_bytes(extent.tensor, form);
  return bytes;
}

uint64_t ChunkMap::LengthOf(const std::vector<Extent>& extents) const {
  uint64_t length = 0;
  for (const Extent& extent : extents) {
    length += RoundUpToGrain(extent.count * element_bytes(extent.tensor, Form::kElements));
  }
  return length;
}

void ChunkMap::Cut(const std::vector<Extent>& all, uint64_t from, uint64_t to, Form form,
                   std::vector<Extent>& part) const {
  part.clear();
  uint64_t at = 0;
  for (const Extent& extent : all) {
    const uint64_t element = element_bytes(extent.tensor, Form::kElements);
    const uint64_t bytes = extent.count * element;
    const uint64_t first = std::min(std::max(from, at) - at, bytes);
    const uint64_t last = std::min(std::max(to, at) - at, bytes);
    if (first < last) {
      const uint64_t skipped = first / element * element_bytes(extent.tensor, form);
      part.push_back({extent.tensor, (last - first) / element,
                      extent.data == nullptr ? nullptr : extent.data + skipped});
    }
    at += RoundUpToGrain(bytes);
  }
}

}  // namespace horoacc
