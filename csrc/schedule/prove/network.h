#pragma once
// Lanes, and the messages between them, while a schedule is proven.
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "schedule/prove/memory.h"
#include "schedule/prove/ordering.h"
#include "schedule/prove/prover.h"

namespace horoacc::schedule {

/// The message of a step, to one peer or to many.
struct Message {
  std::vector<Value> values;
  Extent source;  ///< memory that links read; empty if the bytes are in the slot
  std::vector<Time> clock;
  uint32_t chain = 0;
  uint32_t window = 0;
  uint32_t untaken = 0;  ///< peers that have not taken it
};

inline constexpr uint32_t kNobody = ~0u;

struct Link {
  LinkUse use;
  uint32_t sender = kNobody, receiver = kNobody;  ///< actors
  std::vector<Message*> messages;                 ///< at most the link's depth
  uint32_t next_of_pair = kNobody;                ///< the link of another channel

  [[nodiscard]] Message* Pop() {
    Message* message = messages.front();
    messages.erase(messages.begin());
    return message;
  }
};

// One lane of one rank.
struct Actor {
  uint32_t rank = 0, lane = 0;
  uint32_t window = 0, k = 0;
  Step step;              ///< the k-th
  bool fetched = false;   ///< `step` is valid
  bool received = false;  ///< the first half of step k is over
  bool queued = false;
  uint32_t sources_ready = 0, targets_ready = 0;  ///< found so far; they stay ready until step k
  uint32_t chain = 0;         ///< longest chain of messages that it has waited for
  std::vector<Value> values;  ///< of the first half, used by the second
  Extent source;
};

// A window of a rank: the events that must be over before its memory is used again.
struct Turn {
  uint32_t lanes_ended = 0;
  uint32_t untaken = 0;
};

class Network {
 public:
  explicit Network(uint32_t ranks)
      : ranks_(ranks), first_of_pair_(static_cast<size_t>(ranks) * ranks, kNobody) {}

  /// The reference is valid until another link is found for the first time.
  [[nodiscard]] Link& Find(uint32_t from, uint32_t to, uint8_t channel) {
    uint32_t* index = &first_of_pair_[static_cast<size_t>(from) * ranks_ + to];
    while (*index != kNobody) {
      Link& link = links_[*index];
      if (link.use.channel == channel) return link;
      index = &link.next_of_pair;
    }
    *index = static_cast<uint32_t>(links_.size());
    Link& link = links_.emplace_back();
    link.use = {from, to, channel};
    return link;
  }
  [[nodiscard]] const std::vector<Link>& links() const { return links_; }

  /// False if an end of a link belongs to another actor.
  [[nodiscard]] static bool Claim(uint32_t& end, uint32_t actor) {
    if (end == kNobody) end = actor;
    return end == actor;
  }

  /// Messages are reused: a proof makes many, and few are under way at a time.
  [[nodiscard]] Message* NewMessage() {
    if (spare_.empty()) return &messages_.emplace_back();
    Message* message = spare_.back();
    spare_.pop_back();
    return message;
  }
  void Taken(Message* message) {
    if (--message->untaken == 0) spare_.push_back(message);
  }

 private:
  const uint32_t ranks_;
  std::vector<uint32_t> first_of_pair_;
  std::vector<Link> links_;
  std::deque<Message> messages_;  ///< a deque, so that its elements stay in place
  std::vector<Message*> spare_;
};

/// "rank 1, lane 0, window 0, step 3 ".
[[nodiscard]] std::string PlaceOf(const Actor& actor);
/// The event for which an actor that has not ended waits.
[[nodiscard]] std::string WhyStuck(Network& network, const Actor& actor, uint32_t depth);

}  // namespace horoacc::schedule
