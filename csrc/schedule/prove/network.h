#pragma once
// Lanes, and the messages between them, while a schedule is proven.
#include <cstdint>
#include <deque>
#include <vector>

#include "schedule/prove/memory.h"
#include "schedule/prove/ordering.h"
#include "schedule/prove/prover.h"

namespace horoacc::schedule {

struct Message {
  std::vector<Value> values;
  Extent source;  ///< where the link reads them; empty if only the sender's slot has them
  Clock clock;
  uint32_t chain = 0;
  uint32_t window = 0;
};

inline constexpr uint32_t kNobody = ~0u;

struct Link {
  LinkUse use;
  uint32_t sender = kNobody, receiver = kNobody;  ///< actors
  std::deque<Message> messages;
};

// One lane of one rank.
struct Actor {
  uint32_t rank = 0, lane = 0;
  uint32_t window = 0, k = 0;
  bool received = false;  ///< the first half of step k is over
  bool queued = false;
  uint32_t chain = 0;  ///< of the messages that it has waited for
  Clock clock;
  std::vector<Value> values;  ///< what the first half left for the second
  Extent source;
};

// A window of a rank: what must be over before its memory is used again.
struct Turn {
  uint32_t lanes_ended = 0;
  uint32_t untaken = 0;
  Clock over;
};

class Network {
 public:
  explicit Network(uint32_t ranks)
      : ranks_(ranks), links_of_pair_(static_cast<size_t>(ranks) * ranks) {}

  [[nodiscard]] Link* Find(uint32_t from, uint32_t to, uint8_t channel) {
    std::vector<uint32_t>& pair = links_of_pair_[static_cast<size_t>(from) * ranks_ + to];
    for (const uint32_t index : pair) {
      if (links_[index].use.channel == channel) return &links_[index];
    }
    pair.push_back(static_cast<uint32_t>(links_.size()));
    Link& link = links_.emplace_back();
    link.use = {from, to, channel};
    return &link;
  }
  [[nodiscard]] const std::deque<Link>& links() const { return links_; }

  /// False if an end of a link is another actor's.
  [[nodiscard]] static bool Claim(uint32_t& end, uint32_t actor) {
    if (end == kNobody) end = actor;
    return end == actor;
  }

 private:
  const uint32_t ranks_;
  std::vector<std::vector<uint32_t>> links_of_pair_;
  std::deque<Link> links_;  ///< a deque, for its elements stay where they are
};

}  // namespace horoacc::schedule
