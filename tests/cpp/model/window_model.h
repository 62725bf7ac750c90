#pragma once
// Window rings, as an exchange uses them: every rank shows its windows in a ring of places, and
// takes each window from the places of all ranks. When a rank may do so is the ring's own rule.
#include <ranges>

#include "execute/shared_memory/window_ring.h"
#include "model/explore.h"

namespace horoacc::model {

enum class WindowFault {
  kNone,
  kMissingCredit,  ///< shows without waiting until all have consumed what was in the place
  kOwnCreditOnly,  ///< looks at its own consumption only
  kEarlyExpose,    ///< counts a window before the whole of it lies in the place
  kEarlyConsume,   ///< counts a window as consumed before it has read all
  kOneExposed,     ///< takes a window when any peer has exposed it
};

template <uint32_t kRanks>
class WindowModel {
 public:
  struct Rank {
    uint8_t pc = 0;
    uint8_t peer = 0;  ///< whose place is read
  };
  struct State {
    uint8_t place[kRanks][2][2] = {};
    uint8_t exposed[kRanks] = {};
    uint8_t consumed[kRanks] = {};
    Rank rank[kRanks];
  };

  WindowModel(uint8_t depth, uint8_t windows, WindowFault fault)
      : depth_(depth), windows_(windows), fault_(fault) {}
  [[nodiscard]] State initial() const { return {}; }
  [[nodiscard]] uint32_t processes() const { return kRanks; }
  [[nodiscard]] bool Done(const State& s) const {
    for (uint32_t r = 0; r < kRanks; ++r) {
      if (s.consumed[r] != windows_) return false;
    }
    return true;
  }

  Outcome Step(State& s, uint32_t process, const char** wrong) const {
    Rank& me = s.rank[process];
    const auto r = static_cast<uint8_t>(process);
    switch (me.pc) {
      case kChoose:
        // Draining comes before filling.
        if (s.consumed[r] < windows_ && AllExposed(s, r)) {
          me.peer = 0;
          me.pc = fault_ == WindowFault::kEarlyConsume ? kConsume : kReadFirst;
        } else if (s.exposed[r] < windows_ && MayExpose(s, r)) {
          me.pc = kWriteFirst;
        } else {
          return Outcome::kBlocked;
        }
        return Outcome::kMoved;
      case kWriteFirst:
        s.place[r][s.exposed[r] % depth_][0] = static_cast<uint8_t>(s.exposed[r] + 1);
        me.pc = fault_ == WindowFault::kEarlyExpose ? kExpose : kWriteSecond;
        return Outcome::kMoved;
      case kWriteSecond: {
        const bool early = fault_ == WindowFault::kEarlyExpose;
        const uint32_t window = s.exposed[r] - (early ? 1 : 0);
        s.place[r][window % depth_][1] = static_cast<uint8_t>(window + 1);
        me.pc = early ? kChoose : kExpose;
        return Outcome::kMoved;
      }
      case kExpose:
        ++s.exposed[r];
        me.pc = fault_ == WindowFault::kEarlyExpose ? kWriteSecond : kChoose;
        return Outcome::kMoved;
      case kReadFirst:
      case kReadSecond: {
        const uint32_t half = me.pc == kReadFirst ? 0 : 1;
        const bool early = fault_ == WindowFault::kEarlyConsume;
        const uint32_t window = s.consumed[r] - (early ? 1 : 0);
        if (s.place[me.peer][window % depth_][half] != window + 1) *wrong = "reads another window";
        me.pc = half == 0 ? kReadSecond : kReadFirst;
        if (half == 1 && ++me.peer == kRanks) me.pc = early ? kChoose : kConsume;
        return Outcome::kMoved;
      }
      default:  // kConsume
        ++s.consumed[r];
        me.pc = fault_ == WindowFault::kEarlyConsume ? kReadFirst : kChoose;
        return Outcome::kMoved;
    }
  }

 private:
  enum Place : uint8_t {
    kChoose,
    kWriteFirst,
    kWriteSecond,
    kExpose,
    kReadFirst,
    kReadSecond,
    kConsume
  };

  [[nodiscard]] bool AllExposed(const State& s, uint8_t r) const {
    if (fault_ == WindowFault::kOneExposed) return std::ranges::max(s.exposed) > s.consumed[r];
    return LeastOf(Everyone(), [&](uint32_t peer) { return s.exposed[peer]; }) > s.consumed[r];
  }
  [[nodiscard]] bool MayExpose(const State& s, uint8_t r) const {
    if (fault_ == WindowFault::kMissingCredit) return true;
    const bool own = fault_ == WindowFault::kOwnCreditOnly;
    const uint64_t least =
        LeastOf(Everyone(), [&](uint32_t peer) { return s.consumed[own ? r : peer]; });
    return HasFreePlace(s.exposed[r], depth_, least);
  }
  static auto Everyone() { return std::views::iota(0u, kRanks); }

  const uint8_t depth_, windows_;
  const WindowFault fault_;
};

}  // namespace horoacc::model
