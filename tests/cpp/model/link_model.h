#pragma once
// A shared-memory link with both of its ends, and the doorbells on which they sleep
// (transport/wake/doorbell.h): one rank posts messages into slots, the other takes them and gives
// the slots back as credits. When the sender may post is SendLink's own rule.
#include "model/explore.h"
#include "transport/data/data_links.h"

namespace horoacc::model {

enum class Sleep {
  kFutex,  ///< the kernel looks whether the announcement still stands; a wake-up that finds
           ///< nobody is lost
  kPoll,   ///< nobody compares, but a wake-up that comes too early is kept
};

/// What a careless implementation would do.
enum class LinkFault {
  kNone,
  kMissingCredit,  ///< posts without looking at the credits
  kEarlyPost,      ///< counts a message before the whole of it lies in the slot
  kEarlyRelease,   ///< gives a slot back before the whole of it was read
  kDeafSleep,      ///< does not look at the count once more before it sleeps
  kLateAnnounce,   ///< looks at the count before it says that it sleeps
  kSleepOnCount,   ///< sleeps while the count stands, though a ring of before may have taken the
                   ///< announcement back
  kBufferedStore,  ///< says that it sleeps by a plain store, which a core may hold back
};

class LinkModel {
 public:
  struct Rank {
    uint8_t pc = 0;
    uint8_t done = 0;      ///< messages posted, or taken
    uint8_t seen = 0;      ///< the doorbell's count before this rank looked
    uint8_t buffered = 0;  ///< 1: a store of 1 to `waiter` that nobody else sees yet
  };
  struct State {
    uint8_t slot[2][2] = {};  ///< depth × halves of a message
    uint8_t posted = 0, released = 0;
    uint8_t count[2] = {};   ///< of the doorbells of sender and receiver
    uint8_t waiter[2] = {};  ///< says that it sleeps
    uint8_t asleep[2] = {};  ///< sleeps in the kernel
    uint8_t kept[2] = {};    ///< wake-ups that came before the sleep
    Rank rank[2];
  };

  LinkModel(uint8_t depth, uint8_t messages, Sleep sleep, LinkFault fault)
      : depth_(depth), messages_(messages), sleep_(sleep), fault_(fault) {}
  [[nodiscard]] State initial() const { return {}; }
  [[nodiscard]] uint32_t processes() const { return 4; }  // two ranks, two store buffers
  [[nodiscard]] bool Done(const State& s) const {
    return s.rank[0].done == messages_ && s.rank[1].done == messages_;
  }

  Outcome Step(State& s, uint32_t process, const char** wrong) const {
    if (process >= 2) return Drain(s, process - 2);
    Rank& me = s.rank[process];
    if (me.done == messages_ && me.pc == kLook) return Outcome::kBlocked;
    switch (me.pc) {
      case kLook:
        me.seen = s.count[process];
        me.pc = kTest;
        return Outcome::kMoved;
      case kTest:
        me.pc = MayMove(s, process)                  ? kFirstHalf
                : fault_ == LinkFault::kLateAnnounce ? kLastLook
                                                     : kAnnounce;
        return Outcome::kMoved;
      case kAnnounce:
        if (fault_ == LinkFault::kBufferedStore) {
          me.buffered = 1;
        } else {
          s.waiter[process] = 1;
        }
        me.pc = fault_ == LinkFault::kLateAnnounce ? kSleep : kLastLook;
        return Outcome::kMoved;
      case kLastLook: {
        const bool rung = fault_ != LinkFault::kDeafSleep && s.count[process] != me.seen;
        me.pc = rung ? kAwake : fault_ == LinkFault::kLateAnnounce ? kAnnounce : kSleep;
        return Outcome::kMoved;
      }
      case kSleep:
        if (MustNotSleep(s, process)) {
          s.kept[process] = 0;
          me.pc = kAwake;
        } else {
          s.asleep[process] = 1;
          me.pc = kInKernel;
        }
        return Outcome::kMoved;
      case kInKernel:
        if (s.asleep[process]) return Outcome::kBlocked;
        me.pc = kAwake;
        return Outcome::kMoved;
      case kAwake:
        s.waiter[process] = 0;
        me.buffered = 0;
        me.pc = kLook;
        return Outcome::kMoved;
      case kFirstHalf:
        return process == 0 ? Put(s, me, 0) : Get(s, me, 0, wrong);
      case kSecondHalf:
        return process == 0 ? Put(s, me, 1) : Get(s, me, 1, wrong);
      case kCount:
        Publish(s, process);
        me.pc = fault_ == Early(process) ? kSecondHalf : kRing;
        return Outcome::kMoved;
      case kRing:
        ++s.count[1 - process];
        me.pc = kWake;
        return Outcome::kMoved;
      default:  // kWake
        if (s.waiter[1 - process]) {
          s.waiter[1 - process] = 0;
          if (sleep_ == Sleep::kPoll && !s.asleep[1 - process]) s.kept[1 - process] = 1;
          s.asleep[1 - process] = 0;
        }
        ++me.done;
        me.pc = kLook;
        return Outcome::kMoved;
    }
  }

 private:
  enum Place : uint8_t {
    kLook,
    kTest,
    kAnnounce,
    kLastLook,
    kSleep,
    kInKernel,
    kAwake,
    kFirstHalf,
    kSecondHalf,
    kCount,
    kRing,
    kWake
  };

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
  static Outcome Drain(State& s, uint32_t rank) {
    if (!s.rank[rank].buffered) return Outcome::kBlocked;
    s.rank[rank].buffered = 0;
    s.waiter[rank] = 1;
    return Outcome::kMoved;
  }
  [[nodiscard]] bool MayMove(const State& s, uint32_t process) const {
    if (process == 1) return s.posted > s.released;
    if (fault_ == LinkFault::kMissingCredit) return true;
    Sender sender(depth_, s.released);
    for (uint8_t k = 0; k < s.posted; ++k) (void)sender.Post({});
    return sender.HasRoom();
  }
  [[nodiscard]] bool MustNotSleep(const State& s, uint32_t process) const {
    if (sleep_ == Sleep::kPoll) return s.kept[process] != 0;
    if (fault_ == LinkFault::kSleepOnCount) return s.count[process] != s.rank[process].seen;
    return s.waiter[process] == 0 && s.rank[process].buffered == 0;
  }
  static void Publish(State& s, uint32_t process) { ++(process == 0 ? s.posted : s.released); }

  // Message m consists of two halves that both say m + 1.
  Outcome Put(State& s, Rank& me, uint32_t half) const {
    s.slot[me.done % depth_][half] = static_cast<uint8_t>(me.done + 1);
    me.pc = After(0, half);
    return Outcome::kMoved;
  }
  Outcome Get(State& s, Rank& me, uint32_t half, const char** wrong) const {
    if (s.slot[me.done % depth_][half] != me.done + 1) *wrong = "reads another message";
    me.pc = After(1, half);
    return Outcome::kMoved;
  }
  [[nodiscard]] uint8_t After(uint32_t process, uint32_t half) const {
    if (fault_ == Early(process)) return half == 0 ? kCount : kRing;
    return half == 0 ? kSecondHalf : kCount;
  }

  const uint8_t depth_, messages_;
  const Sleep sleep_;
  const LinkFault fault_;
};

}  // namespace horoacc::model
