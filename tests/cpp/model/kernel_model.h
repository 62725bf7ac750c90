#pragma once
// The links of persistent kernels (execute/cuda/persistent/interpreter_lane.h, whose counts and
// slots are those of kernel_wait.h here too): blocks in a row hand windows on from slot to slot.
// Two threads write a message; each store of data reaches memory on its own, in any order, and only
// a release waits for those before it. A rank may die at any time; then the host says so by the
// abort word.
#include "execute/cuda/persistent/kernel_wait.h"
#include "model/explore.h"

namespace horoacc::model {

enum class KernelFault {
  kNone,
  kMissingCredit,  ///< posts without looking at what was taken
  kFlagFirst,      ///< counts a message without waiting for its data
  kEarlyRelease,   ///< gives a slot back before all of it was read
  kReusedSlot,     ///< has a slot less than the credits say
  kDeafToAbort,    ///< waits without looking at the abort word
};

template <uint32_t kRanks>
class KernelModel {
 public:
  static constexpr uint32_t kMostDepth = 3;

  struct Rank {
    uint8_t pc = 0;
    uint8_t window = 0;
    uint8_t pending[2] = {};  ///< stores of data on their way: the value
    uint8_t left = 0;         ///< it has given up, or is dead
  };
  /// Link r goes from rank r to the next.
  struct State {
    uint8_t slot[kRanks][kMostDepth][2] = {};
    uint8_t tail[kRanks] = {};
    uint8_t head[kRanks] = {};
    uint8_t abort = 0;
    Rank rank[kRanks];
  };

  KernelModel(uint8_t depth, uint8_t windows, bool dies, KernelFault fault)
      : depth_(depth), windows_(windows), dies_(dies), fault_(fault) {}
  [[nodiscard]] State initial() const { return {}; }
  /// The ranks, their stores, death, and the host.
  [[nodiscard]] uint32_t processes() const { return 3 * kRanks + 2; }
  [[nodiscard]] bool Done(const State& s) const {
    for (const Rank& rank : s.rank) {
      if (rank.left == 0 && rank.window < windows_) return false;
    }
    return true;
  }

  Outcome Step(State& s, uint32_t process, const char** wrong) const {
    if (process < kRanks) return Run(s, process, wrong);
    if (process < 3 * kRanks) return Drain(s, (process - kRanks) / 2, (process - kRanks) % 2);
    if (process == 3 * kRanks) return Die(s);
    return Abort(s);
  }

 private:
  static constexpr uint32_t kLast = kRanks - 1;
  enum Place : uint8_t { kAwait, kReadFirst, kReadSecond, kWriteFirst, kWriteSecond, kPost, kGive };

  [[nodiscard]] static bool Receives(uint32_t r) { return r > 0; }
  [[nodiscard]] static bool Sends(uint32_t r) { return r < kLast; }
  [[nodiscard]] uint32_t SlotOf(uint8_t window) const {
    const uint64_t depth = fault_ == KernelFault::kReusedSlot ? depth_ - 1 : depth_;
    return static_cast<uint32_t>(cuda::SlotOf(window, depth));
  }

  Outcome Run(State& s, uint32_t r, const char** wrong) const {
    Rank& me = s.rank[r];
    if (me.left != 0 || me.window == windows_) return Outcome::kBlocked;
    switch (me.pc) {
      case kAwait:
        return Await(s, r, me);
      case kReadFirst:
      case kReadSecond: {
        const uint32_t half = me.pc == kReadFirst ? 0 : 1;
        if (s.slot[r - 1][SlotOf(me.window)][half] != me.window + 1) {
          *wrong = "reads another message";
        }
        me.pc = half == 0 ? kReadSecond : Sends(r) ? kWriteFirst : kGive;
        return Outcome::kMoved;
      }
      case kWriteFirst:
      case kWriteSecond: {
        const uint32_t half = me.pc == kWriteFirst ? 0 : 1;
        if (me.pending[half] != 0) return Outcome::kBlocked;
        me.pending[half] = static_cast<uint8_t>(me.window + 1);
        me.pc = half == 0 ? kWriteSecond : kPost;
        return Outcome::kMoved;
      }
      case kPost:
        if (fault_ != KernelFault::kFlagFirst && (me.pending[0] | me.pending[1]) != 0) {
          return Outcome::kBlocked;
        }
        s.tail[r] = static_cast<uint8_t>(cuda::CountWith(me.window));
        me.pc = kGive;
        return Outcome::kMoved;
      default:
        return Give(s, r, me);
    }
  }

  Outcome Await(State& s, uint32_t r, Rank& me) const {
    const bool arrived = !Receives(r) || s.tail[r - 1] >= cuda::CountWith(me.window);
    const bool room = !Sends(r) || fault_ == KernelFault::kMissingCredit ||
                      s.head[r] >= cuda::CountThatFrees(me.window, depth_);
    if (arrived && room) {
      if (fault_ == KernelFault::kEarlyRelease) Take(s, r, me);
      me.pc = Receives(r) ? kReadFirst : kWriteFirst;
      return Outcome::kMoved;
    }
    if (s.abort == 0 || fault_ == KernelFault::kDeafToAbort) return Outcome::kBlocked;
    me.left = 1;
    return Outcome::kMoved;
  }

  static void Take(State& s, uint32_t r, const Rank& me) {
    if (Receives(r)) s.head[r - 1] = static_cast<uint8_t>(cuda::CountWith(me.window));
  }

  Outcome Give(State& s, uint32_t r, Rank& me) const {
    if (fault_ != KernelFault::kEarlyRelease) Take(s, r, me);
    me.pc = kAwait;
    ++me.window;
    return Outcome::kMoved;
  }

  Outcome Drain(State& s, uint32_t r, uint32_t half) const {
    uint8_t& value = s.rank[r].pending[half];
    if (value == 0) return Outcome::kBlocked;
    s.slot[r][SlotOf(static_cast<uint8_t>(value - 1))][half] = value;
    value = 0;
    return Outcome::kMoved;
  }

  Outcome Die(State& s) const {
    Rank& last = s.rank[kLast];
    if (!dies_ || last.left != 0 || last.window == windows_) return Outcome::kBlocked;
    last.left = 2;
    return Outcome::kMoved;
  }

  Outcome Abort(State& s) const {
    if (s.abort != 0 || s.rank[kLast].left != 2) return Outcome::kBlocked;
    s.abort = 1;
    return Outcome::kMoved;
  }

  const uint8_t depth_, windows_;
  const bool dies_;
  const KernelFault fault_;
};

}  // namespace horoacc::model
