#pragma once
// The links of a simulation by sender, receiver and channel: found with one probe, because
// lookups are a simulation's most frequent operation.
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace horoacc::schedule {

/// The most messages that a link holds.
inline constexpr uint32_t kLinkDepth = 4;
inline constexpr uint32_t kNobody = ~0u;

struct Link {
  double begins[kLinkDepth];    ///< when a message's first byte arrives
  double arrivals[kLinkDepth];  ///< when its last byte arrives
  double bytes[kLinkDepth];
  double last = 0;     ///< when the last message arrives
  double carried = 0;  ///< seconds for which it was busy
  uint32_t posted = 0, landed = 0, taken = 0, released = 0;
  uint32_t awaited_by = kNobody;  ///< the lane that waits to receive
  uint32_t room_for = kNobody;    ///< the lane that waits to send
};

class LinkTable {
 public:
  LinkTable() : keys_(1u << 10, kFree), links_(keys_.size()) {}
  /// The reference is valid until the next call.
  Link& Find(uint64_t key) {
    uint64_t at = Place(key);
    if (keys_[at] == key) return links_[at];
    if (2 * ++used_ > keys_.size()) {
      Grow();
      at = Place(key);
    }
    keys_[at] = key;
    return links_[at];
  }

  /// The seconds for which the busiest link was busy.
  [[nodiscard]] double busiest() const {
    double most = 0;
    for (const Link& link : links_) most = std::max(most, link.carried);
    return most;
  }

 private:
  static constexpr uint64_t kFree = ~uint64_t{0};

  [[nodiscard]] uint64_t Place(uint64_t key) const {
    const uint64_t mask = keys_.size() - 1;
    uint64_t at = (key * 0x9e3779b97f4a7c15ull >> 20) & mask;
    while (keys_[at] != kFree && keys_[at] != key) at = (at + 1) & mask;
    return at;
  }
  void Grow() {
    std::vector<uint64_t> keys(keys_.size() * 4, kFree);
    std::vector<Link> links(keys.size());
    keys_.swap(keys);
    links_.swap(links);
    for (size_t k = 0; k < keys.size(); ++k) {
      if (keys[k] == kFree) continue;
      const uint64_t at = Place(keys[k]);
      keys_[at] = keys[k];
      links_[at] = links[k];
    }
  }

  std::vector<uint64_t> keys_;
  std::vector<Link> links_;
  uint64_t used_ = 0;
};

}  // namespace horoacc::schedule
