#pragma once
// Agreed list -> buckets. Pure: reads and writes only the state it is given, which lies on the
// control segment (every rank may be the one that decides) or with the root of a message
// controller.
#include <cstdint>
#include <span>
#include <vector>

namespace horoacc {

/// A tensor (or group) that is ready on all ranks.
struct ReadyItem {
  uint32_t id = 0;
  uint64_t sequence = 0;    ///< position among the lowest rank's submissions
  uint32_t sync_round = 0;  ///< times the lowest rank had waited for a result before
  uint64_t bytes = 0;
  bool fusable = false;  ///< a named allreduce
};

struct PlanItem {
  uint32_t bucket = 0;  ///< index + 1; 0: in no bucket
  uint8_t known = 0;    ///< seen at least once and still without a bucket
  uint8_t waiting = 0;  ///< ready, and its bucket is not complete
  uint8_t ran = 0;      ///< ran in this round of its bucket
  uint32_t sync_round = 0;
  uint64_t sequence = 0;
  uint64_t bytes = 0;
};

struct PlanBucket {
  uint32_t first = 0;  ///< into PlanState::order
  uint32_t count = 0;
  uint32_t waiting = 0;
  uint32_t ran = 0;
  uint32_t version = 0;  ///< moves whenever the members change
  uint8_t split = 0;     ///< this round runs member by member
};

/// Fixed-size view of memory that the owner provides (zeroed at the start).
struct PlanState {
  uint64_t threshold = 0;
  uint32_t* bucket_count = nullptr;
  uint32_t* order_count = nullptr;
  uint32_t* version = nullptr;    ///< moves whenever the members of any bucket change
  std::span<PlanItem> items;      ///< by id
  std::span<PlanBucket> buckets;  ///< as many as items suffice
  std::span<uint32_t> order;      ///< ids, bucket after bucket

  [[nodiscard]] static size_t BytesFor(size_t ids);
  [[nodiscard]] static PlanState Over(std::byte* memory, size_t ids, uint64_t threshold);
};

/// Ids that run as one unit, in this order.
using Bucket = std::vector<uint32_t>;

/// Takes items that have just become ready everywhere and returns the buckets to run now.
///
/// Until the lowest rank submits a tensor for the second time, tensors run as they become ready.
/// From then on the tensors of the first step, in the lowest rank's order, form fixed buckets of
/// at most `threshold` bytes, and a bucket runs when all its members are ready. Members never
/// straddle a point where the lowest rank waited for a result. Composition therefore depends on
/// no timing after the first step. A new tensor joins the plan at its own second submission.
[[nodiscard]] std::vector<Bucket> TakeReady(PlanState& plan, std::span<const ReadyItem> items);

/// Splits a bucket whose missing members will not come: returns its ready members; the rest of its
/// round runs member by member.
[[nodiscard]] Bucket SplitBucket(PlanState& plan, uint32_t bucket);

/// An item ended in an error: it counts as run, and the members of its bucket that waited for it
/// are returned.
[[nodiscard]] Bucket SkipItem(PlanState& plan, uint32_t id);

/// Forgets an id that is given to another name. Members of its bucket that waited for no other one
/// go on waiting: SplitBucket returns them.
void ForgetItem(PlanState& plan, uint32_t id);

}  // namespace horoacc
