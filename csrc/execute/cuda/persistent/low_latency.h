#pragma once
// Allreduce of small messages without a fence or a barrier: every 4 bytes of data travel with a
// flag in one 8-byte word, so a word that has its flag has its data (the LL protocol of NCCL and
// MSCCL++).
//
// The flag is the number of the call, and calls use two sets of words in turn: a rank that ends a
// call has heard from all ranks in it, directly or through an owner, so all ranks have ended the
// call before, and none reads that set any more. Thread i of a block sends to thread i of the same
// block on every peer. tests/cpp/model/low_latency_model.h explores this code's interleavings.
#include <cstring>

#include "execute/cuda/persistent/kernel_wait.h"

namespace horoacc::cuda {

/// The elements that words hold together: as many as fill one, or one that takes two.
template <typename Stored>
struct LowLatencyUnit {
  static constexpr uint32_t kElements = sizeof(Stored) < 4 ? 4 / sizeof(Stored) : 1;
  static constexpr uint32_t kWords = sizeof(Stored) < 4 ? 1 : sizeof(Stored) / 4;
};

/// Units that `count` elements take, and words of each.
HA_INLINE uint64_t UnitsOf(uint64_t count, uint64_t element_bytes) {
  const uint64_t each = element_bytes < 4 ? 4 / element_bytes : 1;
  return (count + each - 1) / each;
}
HA_INLINE uint32_t WordsOfUnit(uint64_t element_bytes) {
  return element_bytes < 4 ? 1 : static_cast<uint32_t>(element_bytes / 4);
}
/// Units of an owner's part, in a two-shot.
HA_INLINE uint64_t UnitsOfPart(uint64_t units, uint32_t ranks) {
  return (units + ranks - 1) / ranks;
}

namespace {

template <typename E, typename Op, typename Cta>
class LowLatency {
 public:
  using Stored = typename E::Stored;
  using Unit = LowLatencyUnit<Stored>;
  struct Packet {
    uint32_t word[Unit::kWords];
  };

  HA_INLINE LowLatency(Cta& cta, const KernelProgram& program, const KernelCall& call, Op op)
      : cta_(cta),
        header_(program.header()),
        call_(call),
        op_(op),
        rank_(cta.rank()),
        ranks_(header_.ranks),
        count_(header_.window_elements),
        units_(UnitsOf(count_, sizeof(Stored))),
        flag_(static_cast<uint32_t>(call.call + 1)) {}

  /// False: the call was given up, and the output is invalid.
  HA_HOST_DEVICE bool Run() {
    const bool two = header_.kind == KernelKind::kTwoShot;
    const uint64_t part = two ? UnitsOfPart(units_, ranks_) : units_;
    if (two) {
      SendParts(part);
    } else {
      SendAll();
    }
    const uint64_t first = two ? part * rank_ : 0;
    const uint64_t mine = units_ <= first ? 0 : Least(part, units_ - first);
    bool ok = true;
    EachUnit(mine, [&](uint64_t i) { ok = ok && ReduceUnit(first, i, part, two); });
    if (two) {
      EachUnit(part, [&](uint64_t i) { ok = ok && TakeResults(i, part); });
    }
    if (!ok) cta_.Report(GivenUp(rank_, 0, 0));
    return ok;
  }

 private:
  [[nodiscard]] HA_INLINE static uint64_t Least(uint64_t a, uint64_t b) { return a < b ? a : b; }

  template <typename Body>
  HA_INLINE void EachUnit(uint64_t units, const Body& body) {
    cta_.Each([&](const Grid& grid) {
      const uint64_t stride = uint64_t{header_.channels} * grid.threads;
      HA_ROLLED
      for (uint64_t i = uint64_t{cta_.channel()} * grid.threads + grid.thread; i < units;
           i += stride) {
        body(i);
      }
    });
  }

  /// The words of unit i that `from` sends to `to`: parts or everything in the first half of the
  /// set, results in the second.
  [[nodiscard]] HA_INLINE uint64_t* Words(uint32_t to, uint32_t from, uint64_t i, uint64_t units,
                                          bool results) const {
    const bool two = header_.kind == KernelKind::kTwoShot;
    const uint64_t area = units * Unit::kWords;
    const uint64_t set = (two ? 2 : 1) * area * ranks_;
    const uint64_t at = (call_.call & 1) * set + (results ? ranks_ * area : 0) + from * area;
    return reinterpret_cast<uint64_t*>(call_.workspace[to] + header_.words) + at + i * Unit::kWords;
  }
  HA_INLINE void Send(uint64_t* to, const Packet& packet) {
    for (uint32_t w = 0; w < Unit::kWords; ++w) {
      cta_.StoreWord(to + w, uint64_t{flag_} << 32 | packet.word[w]);
    }
  }
  HA_INLINE bool Receive(const uint64_t* from, Packet* packet) {
    for (uint32_t w = 0; w < Unit::kWords; ++w) {
      HA_ROLLED
      for (uint32_t looks = 0;; ++looks) {
        const uint64_t word = cta_.LoadWord(from + w);
        packet->word[w] = static_cast<uint32_t>(word);
        if (static_cast<uint32_t>(word >> 32) == flag_) break;
        if (!cta_.GoOn(looks)) return false;
      }
    }
    return true;
  }

  [[nodiscard]] HA_INLINE uint32_t ElementsOf(uint64_t unit) const {
    return static_cast<uint32_t>(Least(Unit::kElements, count_ - unit * Unit::kElements));
  }
  [[nodiscard]] HA_INLINE Packet Load(uint64_t unit) const {
    const char* const at = call_.input[rank_] + unit * Unit::kElements * sizeof(Stored);
    Stored element[Unit::kElements] = {};
    const uint32_t count = ElementsOf(unit);
    for (uint32_t e = 0; e < Unit::kElements; ++e) {
      if (e < count) element[e] = LoadElement<Stored>(at + e * sizeof(Stored));
    }
    Packet packet;
    memcpy(&packet, element, sizeof packet);
    return packet;
  }
  HA_INLINE void Store(uint64_t unit, const Packet& packet) const {
    char* const at = call_.output[rank_] + unit * Unit::kElements * sizeof(Stored);
    Stored element[Unit::kElements];
    memcpy(element, &packet, sizeof packet);
    const uint32_t count = ElementsOf(unit);
    for (uint32_t e = 0; e < Unit::kElements; ++e) {
      if (e < count) StoreElement<Stored>(at + e * sizeof(Stored), element[e]);
    }
  }

  /// Begins with the next peer, so that the ranks do not all write to one at a time.
  HA_INLINE void SendAll() {
    EachUnit(units_, [&](uint64_t i) {
      const Packet packet = Load(i);
      HA_ROLLED
      for (uint32_t k = 1; k < ranks_; ++k) {
        Send(Words((rank_ + k) % ranks_, rank_, i, units_, false), packet);
      }
    });
  }
  HA_INLINE void SendParts(uint64_t part) {
    EachUnit(part, [&](uint64_t i) {
      HA_ROLLED
      for (uint32_t k = 1; k < ranks_; ++k) {
        const uint32_t owner = (rank_ + k) % ranks_;
        const uint64_t unit = owner * part + i;
        if (unit < units_) Send(Words(owner, rank_, i, part, false), Load(unit));
      }
    });
  }

  /// A unit of every rank, received when the tree asks for it.
  struct ReceivedLeaf {
    using Acc = typename E::Acc;
    using Vector = Lanes<Acc, Unit::kElements>;
    LowLatency& call;
    uint64_t first, i, part;
    bool* ok;

    [[nodiscard]] HA_INLINE Vector At(uint32_t rank) const {
      Packet packet;
      if (rank == call.rank_) {
        packet = call.Load(first + i);
      } else {
        *ok = *ok && call.Receive(call.Words(call.rank_, rank, i, part, false), &packet);
        if (!*ok) packet = {};
      }
      Stored element[Unit::kElements];
      memcpy(element, &packet, sizeof packet);
      Vector out;
      for (uint32_t e = 0; e < Unit::kElements; ++e) {
        out.lane[e] = Prescaled<E>(call.header_.factors, E::Widen(element[e]));
      }
      return out;
    }
  };

  HA_INLINE bool ReduceUnit(uint64_t first, uint64_t i, uint64_t part, bool tell) {
    bool ok = true;
    const ReceivedLeaf leaf{*this, first, i, part, &ok};
    RankCounter<6, typename ReceivedLeaf::Vector, Op> counter(op_);
    HA_ROLLED
    for (uint32_t rank = 0; rank < ranks_; ++rank) counter.Add(leaf.At(rank));
    if (!ok) return false;
    const auto sum = counter.Total();
    Stored element[Unit::kElements];
    for (uint32_t e = 0; e < Unit::kElements; ++e) {
      element[e] = E::Narrow(Postscaled(header_.factors, sum.lane[e]));
    }
    Packet packet;
    memcpy(&packet, element, sizeof packet);
    Store(first + i, packet);
    HA_ROLLED
    for (uint32_t k = 1; tell && k < ranks_; ++k) {
      Send(Words((rank_ + k) % ranks_, rank_, i, part, true), packet);
    }
    return true;
  }

  HA_INLINE bool TakeResults(uint64_t i, uint64_t part) {
    HA_ROLLED
    for (uint32_t k = 1; k < ranks_; ++k) {
      const uint32_t owner = (rank_ + k) % ranks_;
      const uint64_t unit = owner * part + i;
      if (unit >= units_) continue;
      Packet packet;
      if (!Receive(Words(rank_, owner, i, part, true), &packet)) return false;
      Store(unit, packet);
    }
    return true;
  }

  Cta& cta_;
  const KernelHeader& header_;
  const KernelCall& call_;
  const Op op_;
  const uint32_t rank_, ranks_;
  const uint64_t count_, units_;
  const uint32_t flag_;
};

}  // namespace
}  // namespace horoacc::cuda
