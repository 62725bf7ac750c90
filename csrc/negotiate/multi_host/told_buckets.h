#pragma once
// The buckets of the root's plan, as the root tells them to leaders, which have no plan.
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "fuse/plan.h"
#include "negotiate/call_numbers.h"

namespace horoacc {

/// The members that a bucket of the plan has now.
struct BucketMembers {
  uint32_t index = 0;
  std::vector<CallName> members;
};

/// At the root: which buckets have changed since it told of them.
class PlanChanges {
 public:
  /// `name_of`: by id.
  [[nodiscard]] std::vector<BucketMembers> Take(const PlanState& plan,
                                                const std::vector<CallName>& name_of) {
    std::vector<BucketMembers> changes;
    if (std::exchange(told_version_, *plan.version) == *plan.version) return changes;
    told_.resize(*plan.bucket_count);
    for (uint32_t index = 0; index < *plan.bucket_count; ++index) {
      const PlanBucket& bucket = plan.buckets[index];
      if (std::exchange(told_[index], bucket.version) == bucket.version) continue;
      BucketMembers& change = changes.emplace_back(BucketMembers{index, {}});
      for (const uint32_t id : plan.order.subspan(bucket.first, bucket.count))
        change.members.push_back(name_of[id]);
    }
    return changes;
  }

 private:
  uint32_t told_version_ = 0;
  std::vector<uint32_t> told_;  ///< by bucket: the version of its members that was told
};

/// At any leader: the buckets that the root has told it of.
class ToldBuckets {
 public:
  /// Returns the calls that were in the bucket before.
  std::vector<CallName> Set(const BucketMembers& bucket) {
    if (bucket.index >= members_.size()) members_.resize(bucket.index + 1);
    std::vector<CallName> old = std::exchange(members_[bucket.index], bucket.members);
    for (const CallName& call : old) {
      const auto found = bucket_of_.find(call);
      if (found != bucket_of_.end() && found->second == bucket.index) bucket_of_.erase(found);
    }
    for (const CallName& call : bucket.members) bucket_of_[call] = bucket.index;
    return old;
  }
  /// The bucket that a call is in.
  [[nodiscard]] std::optional<uint32_t> Of(const CallName& call) const {
    const auto found = bucket_of_.find(call);
    return found == bucket_of_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  std::map<CallName, uint32_t> bucket_of_;
  std::vector<std::vector<CallName>> members_;  ///< by bucket
};

}  // namespace horoacc
