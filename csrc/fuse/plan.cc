#include "fuse/plan.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace horoacc {
namespace {

constexpr size_t kHeaderBytes = 64;

void MembersChanged(PlanState& plan, PlanBucket& bucket) {
  ++bucket.version;
  ++*plan.version;
}

void CloseRoundIfDone(PlanState& plan, PlanBucket& bucket) {
  if (bucket.ran < bucket.count) return;
  for (uint32_t k = 0; k < bucket.count; ++k) plan.items[plan.order[bucket.first + k]].ran = 0;
  bucket.ran = 0;
  bucket.split = 0;
}

void MarkRan(PlanState& plan, PlanBucket& bucket, uint32_t id) {
  PlanItem& item = plan.items[id];
  if (item.waiting) {
    item.waiting = 0;
    --bucket.waiting;
  }
  if (!item.ran) {
    item.ran = 1;
    ++bucket.ran;
  }
}

// A member came round again while others of its bucket have not come at all: those left the model
// (or were never gradients). The bucket goes on without them.
void DropMissing(PlanState& plan, PlanBucket& bucket) {
  uint32_t kept = 0;
  for (uint32_t k = 0; k < bucket.count; ++k) {
    const uint32_t id = plan.order[bucket.first + k];
    PlanItem& item = plan.items[id];
    if (item.ran) {
      plan.order[bucket.first + kept++] = id;
    } else {
      item.bucket = 0;
    }
  }
  bucket.count = kept;
  MembersChanged(plan, bucket);
  CloseRoundIfDone(plan, bucket);
}

// Members that left their buckets leave holes in `order`. Buckets keep their numbers.
void CloseHoles(PlanState& plan) {
  std::vector<uint32_t> members;
  for (PlanBucket& bucket : plan.buckets.first(*plan.bucket_count)) {
    const auto own = plan.order.subspan(bucket.first, bucket.count);
    bucket.first = static_cast<uint32_t>(members.size());
    members.insert(members.end(), own.begin(), own.end());
  }
  std::ranges::copy(members, plan.order.begin());
  *plan.order_count = static_cast<uint32_t>(members.size());
}

// An index whose bucket has lost all its members, or the next new one. As no bucket is added while
// one is empty, there are never more buckets than items.
uint32_t FreeBucket(PlanState& plan, uint32_t& next_look) {
  for (; next_look < *plan.bucket_count; ++next_look) {
    if (plan.buckets[next_look].count == 0) return next_look++;
  }
  ++next_look;
  return (*plan.bucket_count)++;
}

void BuildBuckets(PlanState& plan) {
  std::vector<uint32_t> fresh;
  for (uint32_t id = 0; id < plan.items.size(); ++id) {
    if (plan.items[id].known) fresh.push_back(id);
  }
  std::ranges::sort(fresh, {}, [&](uint32_t id) { return plan.items[id].sequence; });
  // Without holes there is room: no member of a bucket is fresh.
  if (*plan.order_count + fresh.size() > plan.order.size()) CloseHoles(plan);
  PlanBucket* open = nullptr;
  uint32_t open_index = 0;
  uint32_t next_look = 0;
  uint64_t open_bytes = 0;
  uint32_t open_round = 0;
  for (uint32_t id : fresh) {
    PlanItem& item = plan.items[id];
    if (!open || open_bytes + item.bytes > plan.threshold || open_round != item.sync_round) {
      open_index = FreeBucket(plan, next_look);
      open = &plan.buckets[open_index];
      *open = PlanBucket{.first = *plan.order_count, .version = open->version};
      MembersChanged(plan, *open);
      open_bytes = 0;
      open_round = item.sync_round;
    }
    plan.order[(*plan.order_count)++] = id;
    item.bucket = open_index + 1;
    item.known = 0;
    ++open->count;
    open_bytes += item.bytes;
  }
}

}  // namespace

size_t PlanState::BytesFor(size_t ids) {
  return kHeaderBytes + ids * (sizeof(PlanItem) + sizeof(PlanBucket) + sizeof(uint32_t));
}

PlanState PlanState::Over(std::byte* memory, size_t ids, uint64_t threshold) {
  PlanState plan;
  plan.threshold = threshold;
  auto* header = reinterpret_cast<uint32_t*>(memory);
  plan.bucket_count = &header[0];
  plan.order_count = &header[1];
  plan.version = &header[2];
  std::byte* cursor = memory + kHeaderBytes;
  plan.items = {reinterpret_cast<PlanItem*>(cursor), ids};
  cursor += ids * sizeof(PlanItem);
  plan.buckets = {reinterpret_cast<PlanBucket*>(cursor), ids};
  cursor += ids * sizeof(PlanBucket);
  plan.order = {reinterpret_cast<uint32_t*>(cursor), ids};
  return plan;
}

std::vector<Bucket> TakeReady(PlanState& plan, std::span<const ReadyItem> items) {
  std::vector<Bucket> runnable;
  std::vector<ReadyItem> loose;
  for (const ReadyItem& ready : items) {
    if (!ready.fusable) {
      runnable.push_back({ready.id});
      continue;
    }
    PlanItem& item = plan.items[ready.id];
    if (item.bucket == 0 && item.known && plan.threshold > 0) BuildBuckets(plan);
    if (item.bucket == 0) {
      item.known = 1;
      item.sequence = ready.sequence;
      item.sync_round = ready.sync_round;
      item.bytes = ready.bytes;
      loose.push_back(ready);
      continue;
    }
    PlanBucket& bucket = plan.buckets[item.bucket - 1];
    if (item.ran) DropMissing(plan, bucket);
    if (bucket.split) {
      MarkRan(plan, bucket, ready.id);
      CloseRoundIfDone(plan, bucket);
      runnable.push_back({ready.id});
      continue;
    }
    item.waiting = 1;
    if (++bucket.waiting < bucket.count) continue;
    Bucket whole(plan.order.begin() + bucket.first,
                 plan.order.begin() + bucket.first + bucket.count);
    for (uint32_t id : whole) MarkRan(plan, bucket, id);
    CloseRoundIfDone(plan, bucket);
    runnable.push_back(std::move(whole));
  }
  std::ranges::sort(loose, {}, &ReadyItem::sequence);
  Bucket batch;
  uint64_t batch_bytes = 0;
  for (const ReadyItem& ready : loose) {
    if (!batch.empty() && batch_bytes + ready.bytes > plan.threshold) {
      runnable.push_back(std::exchange(batch, {}));
      batch_bytes = 0;
    }
    batch.push_back(ready.id);
    batch_bytes += ready.bytes;
  }
  if (!batch.empty()) runnable.push_back(std::move(batch));
  return runnable;
}

Bucket SplitBucket(PlanState& plan, uint32_t index) {
  PlanBucket& bucket = plan.buckets[index - 1];
  Bucket ready;
  for (uint32_t k = 0; k < bucket.count; ++k) {
    const uint32_t id = plan.order[bucket.first + k];
    if (plan.items[id].waiting) ready.push_back(id);
  }
  for (uint32_t id : ready) MarkRan(plan, bucket, id);
  bucket.split = 1;
  CloseRoundIfDone(plan, bucket);
  return ready;
}

Bucket SkipItem(PlanState& plan, uint32_t id) {
  PlanItem& item = plan.items[id];
  if (item.bucket == 0) return {};
  PlanBucket& bucket = plan.buckets[item.bucket - 1];
  if (item.ran) DropMissing(plan, bucket);
  MarkRan(plan, bucket, id);
  return SplitBucket(plan, item.bucket);
}

void ForgetItem(PlanState& plan, uint32_t id) {
  PlanItem& item = plan.items[id];
  if (item.bucket != 0) {
    PlanBucket& bucket = plan.buckets[item.bucket - 1];
    const auto members = plan.order.subspan(bucket.first, bucket.count);
    const auto gone = std::ranges::find(members, id);
    std::copy(gone + 1, members.end(), gone);
    --bucket.count;
    if (item.waiting) --bucket.waiting;
    if (item.ran) --bucket.ran;
    MembersChanged(plan, bucket);
  }
  item = PlanItem{};
}

}  // namespace horoacc
