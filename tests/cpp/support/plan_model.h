#pragma once
// A model whose tensors become ready, and the buckets that they must run in.
#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "fuse/plan.h"

namespace horoacc::testing {

inline constexpr size_t kIds = 128;

/// A plan in zeroed memory of its own.
class OwnedPlan {
 public:
  explicit OwnedPlan(uint64_t threshold, size_t ids = kIds)
      : memory_(std::make_unique<uint64_t[]>(PlanState::BytesFor(ids) / sizeof(uint64_t) + 1)),
        state_(PlanState::Over(reinterpret_cast<std::byte*>(memory_.get()), ids, threshold)) {}
  PlanState& operator*() { return state_; }
  PlanState* operator->() { return &state_; }

 private:
  std::unique_ptr<uint64_t[]> memory_;
  PlanState state_;
};

using Buckets = std::vector<Bucket>;

inline std::string Text(const Buckets& buckets) {
  std::string text;
  for (const Bucket& bucket : buckets) {
    text += "(";
    for (const uint32_t id : bucket) text += " " + std::to_string(id);
    text += " )";
  }
  return text;
}

inline Buckets Sorted(Buckets buckets) {
  std::ranges::sort(buckets);
  return buckets;
}

/// The tensors of a model, in the order in which the lowest rank submits them.
struct Model {
  uint64_t threshold = 0;
  std::vector<ReadyItem> items;

  /// Gradients of `bytes` each with ids 0, 1, 2, ...
  static Model Of(uint64_t threshold, const std::vector<uint64_t>& bytes,
                  const std::vector<uint32_t>& sync_rounds = {}) {
    Model model{threshold, {}};
    for (uint32_t k = 0; k < bytes.size(); ++k) {
      model.items.push_back({k, k + 1, sync_rounds.empty() ? 0 : sync_rounds[k], bytes[k], true});
    }
    return model;
  }

  static Model Random(std::mt19937& random) {
    const auto draw = [&](uint32_t most) { return static_cast<uint32_t>(random() % (most + 1)); };
    std::vector<uint32_t> ids(kIds);
    std::iota(ids.begin(), ids.end(), 0);
    std::ranges::shuffle(ids, random);
    Model model{draw(3) == 0 ? 1 : draw(400), {}};
    const uint32_t count = 1 + draw(39);
    uint64_t sequence = draw(100);
    uint32_t sync_round = 0;
    for (uint32_t k = 0; k < count; ++k) {
      if (draw(9) == 0) sync_round += 1 + draw(2);
      sequence += 1 + draw(3);
      model.items.push_back({ids[k], sequence, sync_round, draw(4) == 0 ? 0 : draw(200), true});
    }
    if (model.threshold == 0) model.threshold = 1;
    return model;
  }

  /// The buckets that the documentation promises: in submission order, up to the threshold, never
  /// past a point where the lowest rank waited.
  [[nodiscard]] Buckets Expected() const {
    Buckets buckets;
    uint64_t bytes = 0;
    std::optional<uint32_t> sync_round;
    for (const ReadyItem& item : items) {
      if (sync_round != item.sync_round || bytes + item.bytes > threshold) {
        buckets.emplace_back();
        bytes = 0;
      }
      sync_round = item.sync_round;
      bytes += item.bytes;
      buckets.back().push_back(item.id);
    }
    return buckets;
  }

  /// Tensors become ready once each, in the given order, in random batches.
  [[nodiscard]] Buckets Step(PlanState& plan, const std::vector<size_t>& order,
                             std::mt19937& random) const {
    Buckets ran;
    for (size_t at = 0; at < order.size();) {
      const size_t batch = std::min<size_t>(order.size() - at, 1 + random() % 3);
      std::vector<ReadyItem> ready;
      for (size_t k = 0; k < batch; ++k) ready.push_back(items[order[at++]]);
      for (Bucket& bucket : TakeReady(plan, ready)) ran.push_back(std::move(bucket));
    }
    return ran;
  }

  /// A later step of the whole model, in a random order.
  [[nodiscard]] Buckets ShuffledStep(PlanState& plan, std::mt19937& random) const {
    std::vector<size_t> order(items.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, random);
    Model later = *this;
    // Where the lowest rank is in its run by now is not where it was in the first step.
    for (ReadyItem& item : later.items) {
      item.sequence += 1000 + random() % 50;
      item.sync_round += random() % 5;
    }
    return later.Step(plan, order, random);
  }

  /// The first step: the lowest rank's sequence and sync_rounds count.
  [[nodiscard]] Buckets FirstStep(PlanState& plan, std::mt19937& random) const {
    std::vector<ReadyItem> order = items;
    std::ranges::shuffle(order, random);
    Buckets ran;
    for (const ReadyItem& item : order) {
      for (Bucket& bucket : TakeReady(plan, {&item, 1})) ran.push_back(std::move(bucket));
    }
    return ran;
  }
};

inline std::vector<uint32_t> Flat(const Buckets& buckets) {
  std::vector<uint32_t> ids;
  for (const Bucket& bucket : buckets) ids.insert(ids.end(), bucket.begin(), bucket.end());
  std::ranges::sort(ids);
  return ids;
}

inline std::vector<uint32_t> IdsOf(const Model& model) {
  std::vector<uint32_t> ids;
  for (const ReadyItem& item : model.items) ids.push_back(item.id);
  std::ranges::sort(ids);
  return ids;
}

}  // namespace horoacc::testing
