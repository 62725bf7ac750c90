#pragma once
// A shared-memory link with both of its ends: one rank posts messages into slots, the other takes
// them and gives the slots back as credits. When the sender may post is SendLink's own rule. An end
// that cannot move waits until it can; how it sleeps and is woken is doorbell_model.h's.
#include "model/explore.h"
#include "transport/data/data_links.h"

namespace horoacc::model {

/// What a careless implementation would do.
enum class LinkFault {
  kNone,
  kMissingCredit,  ///< posts without looking at the credits
  kEarlyPost,      ///< counts a message before the whole of it lies in the slot
  kEarlyRelease,   ///< gives a slot back before the whole of it was read
};

class LinkModel {
 public:
  struct Rank {
    uint8_t pc = 0;
    uint8_t done = 0;  ///< messages posted, or taken
  };
  struct State {
    uint8_t slot[2][2] = {};  ///< depth × halves of a message
    uint8_t posted = 0, released = 0;
    Rank rank[2];
  };

  LinkModel(uint8_t depth, uint8_t messages, LinkFault fault)
      : depth_(depth), messages_(messages), fault_(fault) {}
  [[nodiscard]] State initial() const { return {}; }
  [[nodiscard]] uint32_t processes() const { return 2; }
  [[nodiscard]] bool Done(const State& s) const {
    return s.rank[0].done == messages_ && s.rank[1].done == messages_;
  }

  Outcome Step(State& s, uint32_t process, const char** wrong) const {
    Rank& me = s.rank[process];
    const bool early = fault_ == Early(process);
    switch (me.pc) {
      case kLook:
        if (me.done == messages_ || !MayMove(s, process)) return Outcome::kBlocked;
        me.pc = kFirstHalf;
        return Outcome::kMoved;
      case kFirstHalf:
        Move(s, process, 0, wrong);
        me.pc = early ? kCount : kSecondHalf;
        return Outcome::kMoved;
      case kSecondHalf:
        Move(s, process, 1, wrong);
        if (early) return End(me);
        me.pc = kCount;
        return Outcome::kMoved;
      default:  // kCount
        ++(process == 0 ? s.posted : s.released);
        if (!early) return End(me);
        me.pc = kSecondHalf;
        return Outcome::kMoved;
    }
  }

 private:
  enum Place : uint8_t { kLook, kFirstHalf, kSecondHalf, kCount };

  /// The sending end, but for the memory of its slots.
  class Sender final : public SendLink {
   public:
    Sender(uint32_t slots, uint64_t taken) : SendLink(slots), taken_(taken) {}
    uint64_t taken() override { return taken_; }
    Result<std::byte*> Slot() override { return nullptr; }

   private:
    Status DoPost(uint64_t, SendPieces) override { return {}; }
    const uint64_t taken_;
  };

  static LinkFault Early(uint32_t process) {
    return process == 0 ? LinkFault::kEarlyPost : LinkFault::kEarlyRelease;
  }
  static Outcome End(Rank& me) {
    ++me.done;
    me.pc = kLook;
    return Outcome::kMoved;
  }
  [[nodiscard]] bool MayMove(const State& s, uint32_t process) const {
    if (process == 1) return s.posted > s.released;
    if (fault_ == LinkFault::kMissingCredit) return true;
    Sender sender(depth_, s.released);
    for (uint8_t k = 0; k < s.posted; ++k) (void)sender.Post({});
    return sender.HasRoom();
  }
  // Message m consists of two halves that both say m + 1.
  void Move(State& s, uint32_t process, uint32_t half, const char** wrong) const {
    const Rank& me = s.rank[process];
    uint8_t& place = s.slot[me.done % depth_][half];
    const auto message = static_cast<uint8_t>(me.done + 1);
    if (process == 0) place = message;
    if (place != message) *wrong = "reads another message";
  }

  const uint8_t depth_, messages_;
  const LinkFault fault_;
};

}  // namespace horoacc::model
