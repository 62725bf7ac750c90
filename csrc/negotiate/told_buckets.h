#pragma once
// The buckets of the root's plan, as the root tells them to ranks that have no plan.
#include <cstdint>
#include <map>
#include <type_traits>
#include <utility>
#include <vector>

#include "fuse/plan.h"
#include "negotiate/control_segment/segment_layout.h"
#include "negotiate/wire.h"

namespace horoacc {

/// The members that a bucket of the plan has now. `Key`: the name by which ranks know a member.
template <typename Key>
struct BucketMembers {
  uint32_t index = 0;
  std::vector<Key> members;
};

/// At the root: which buckets have changed since it told of them.
template <typename Key>
class PlanChanges {
 public:
  /// `key_of`: by id.
  template <typename KeyOf>
  [[nodiscard]] std::vector<BucketMembers<Key>> Take(const PlanState& plan, const KeyOf& key_of) {
    std::vector<BucketMembers<Key>> changes;
    if (std::exchange(told_version_, *plan.version) == *plan.version) return changes;
    told_.resize(*plan.bucket_count);
    for (uint32_t index = 0; index < *plan.bucket_count; ++index) {
      const PlanBucket& bucket = plan.buckets[index];
      if (std::exchange(told_[index], bucket.version) == bucket.version) continue;
      BucketMembers<Key>& change = changes.emplace_back(BucketMembers<Key>{index, {}});
      for (const uint32_t id : plan.order.subspan(bucket.first, bucket.count))
        change.members.push_back(key_of(id));
    }
    return changes;
  }

 private:
  uint32_t told_version_ = 0;
  std::vector<uint32_t> told_;  ///< by bucket: the version of its members that was told
};

/// At any rank: the buckets that the root has told it of.
template <typename Key>
class ToldBuckets {
 public:
  void Set(const BucketMembers<Key>& bucket) {
    if (bucket.index >= members_.size()) members_.resize(bucket.index + 1);
    std::vector<Key>& members = members_[bucket.index];
    for (const Key& key : members) {
      const auto found = bucket_of_.find(key);
      if (found != bucket_of_.end() && found->second == bucket.index) bucket_of_.erase(found);
    }
    members = bucket.members;
    for (const Key& key : members) bucket_of_[key] = bucket.index;
  }
  /// The buckets of which the rank has submitted some members but not all, with one of those.
  /// `submitted`: the rank's undecided calls, by key.
  template <typename Calls>
  [[nodiscard]] std::vector<std::pair<uint32_t, Key>> Partial(const Calls& submitted) const {
    std::map<uint32_t, std::pair<size_t, const Key*>> touched;
    for (const auto& [key, call] : submitted) {
      const auto bucket = bucket_of_.find(key);
      if (bucket == bucket_of_.end()) continue;
      auto& [count, witness] = touched[bucket->second];
      ++count;
      witness = &key;
    }
    std::vector<std::pair<uint32_t, Key>> partial;
    for (const auto& [bucket, here] : touched) {
      if (here.first < members_[bucket].size()) partial.emplace_back(bucket, *here.second);
    }
    return partial;
  }

 private:
  std::map<Key, uint32_t> bucket_of_;
  std::vector<std::vector<Key>> members_;  ///< by bucket
};

template <typename Key>
void Put(WireWriter& writer, const std::vector<BucketMembers<Key>>& changes) {
  writer.Put(static_cast<uint32_t>(changes.size()));
  for (const BucketMembers<Key>& bucket : changes) {
    writer.Put(bucket.index);
    if constexpr (std::is_arithmetic_v<Key>) {
      Put(writer, bucket.members);
    } else {
      writer.Put(static_cast<uint32_t>(bucket.members.size()));
      for (const Key& key : bucket.members) Put(writer, key);
    }
  }
}

/// `get`: reads a key of at least `key_bytes`.
template <typename Key, typename Get>
[[nodiscard]] std::vector<BucketMembers<Key>> GetBuckets(WireReader& reader, size_t key_bytes,
                                                         const Get& get) {
  std::vector<BucketMembers<Key>> changes(reader.GetCount(2 * sizeof(uint32_t)));
  for (BucketMembers<Key>& bucket : changes) {
    bucket.index = reader.Get<uint32_t>();
    bucket.members.resize(reader.GetCount(key_bytes));
    for (Key& key : bucket.members) key = get(reader);
    if (bucket.index >= kNamedIds) reader.Fail();
  }
  return changes;
}

}  // namespace horoacc
