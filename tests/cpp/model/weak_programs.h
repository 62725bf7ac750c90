#pragma once
// What the core does with atomics, as programs over weak memory: each is the pattern of several of
// its structures, with the orders that stand there (docs/aarch64.md lists which). The doorbell's is
// production code.
#include "execute/shared_memory/window_ring.h"
#include "model/weak_memory.h"
#include "transport/wake/doorbell_rules.h"

namespace horoacc::model {

inline constexpr auto kRelaxed = std::memory_order_relaxed;
inline constexpr auto kAcquire = std::memory_order_acquire;
inline constexpr auto kRelease = std::memory_order_release;
inline constexpr auto kAcqRel = std::memory_order_acq_rel;
inline constexpr auto kSeqCst = std::memory_order_seq_cst;

/// A ring of places with one writer and one reader: rings of notes between two ranks, windows of a
/// message, the log of decisions, the outbox, a rank's window ring.
struct RingProgram {
  static constexpr uint32_t kDepth = 1;
  static constexpr uint8_t kItems = 3;
  static constexpr WeakShape kShape{.threads = 2, .atomics = 2, .plain = kDepth};
  static constexpr uint32_t kMostAccesses = 3 * kItems;
  enum : uint32_t { kWritten, kRead };

  template <typename Ops>
  bool Run(uint32_t thread, Ops& ops) const {
    for (uint8_t k = 0; k < kItems; ++k) {
      if (thread == 0) {
        ops.Await(kRead, kAcquire, [&](uint8_t read) { return HasFreePlace(k, kDepth, read); });
        ops.WritePlain(k % kDepth, k + 1);
        ops.Store(kWritten, k + 1, kRelease);
      } else {
        ops.Await(kWritten, kAcquire, [&](uint8_t written) { return written > k; });
        ops.Check(ops.ReadPlain(k % kDepth) == k + 1, "reads another item");
        ops.Store(kRead, k + 1, kRelease);
      }
    }
    return true;
  }
};

/// Slices that any rank claims once all have shown their inputs, and whose sums all take once all
/// are done; then inputs are written again.
struct SliceProgram {
  static constexpr uint32_t kRanks = 2;
  static constexpr uint8_t kSlices = 2;
  static constexpr WeakShape kShape{
      .threads = kRanks, .atomics = kRanks + 2, .plain = kRanks + kSlices, .kept = 2};
  static constexpr uint32_t kMostAccesses = 24;
  enum : uint32_t { kNext = kRanks, kDone };  // the first are `exposed`, by rank

  template <typename Ops>
  bool Run(uint32_t rank, Ops& ops) const {
    ops.WritePlain(rank, 1);
    ops.Store(rank, 1, kRelease);
    for (uint32_t r = 0; r < kRanks; ++r)
      ops.Await(r, kAcquire, [](uint8_t exposed) { return exposed == 1; });
    for (;;) {
      uint8_t slice = ops.Load(kNext, kRelaxed);
      if (ops.cut() || slice >= kSlices) break;
      if (!ops.CompareExchange(kNext, slice, slice + 1, kRelaxed)) continue;
      uint8_t sum = 0;
      for (uint32_t r = 0; r < kRanks; ++r) sum += ops.ReadPlain(r);
      ops.WritePlain(kRanks + slice, sum);
      ops.Modify(kDone, kAcqRel, [](uint8_t done) { return done + 1; });
    }
    ops.Await(kDone, kAcquire, [](uint8_t done) { return done == kSlices; });
    for (uint32_t slice = 0; slice < kSlices; ++slice)
      ops.Check(ops.ReadPlain(kRanks + slice) == kRanks, "takes another sum");
    ops.WritePlain(rank, 2);
    return true;
  }
};

/// Rows of a call: each rank writes its own and arrives; the last to arrive reads all, and decides.
struct ArrivalProgram {
  static constexpr uint32_t kRanks = 3;
  static constexpr WeakShape kShape{
      .threads = kRanks, .atomics = 2, .plain = kRanks + 1, .kept = 2};
  static constexpr uint32_t kMostAccesses = 12;
  enum : uint32_t { kArrivals, kLogWords };

  template <typename Ops>
  bool Run(uint32_t rank, Ops& ops) const {
    ops.WritePlain(rank, 1);
    const uint8_t before = ops.Modify(kArrivals, kSeqCst, [](uint8_t a) { return a + 1; });
    if (!ops.cut() && before + 1U == kRanks) {
      for (uint32_t r = 0; r < kRanks; ++r) ops.Check(ops.ReadPlain(r) == 1, "reads an old row");
      ops.WritePlain(kRanks, 1);
      ops.Store(kLogWords, 1, kRelease);
    }
    ops.Await(kLogWords, kAcquire, [](uint8_t words) { return words == 1; });
    ops.Check(ops.ReadPlain(kRanks) == 1, "reads an old decision");
    for (uint32_t r = 0; r < kRanks; ++r) ops.Check(ops.ReadPlain(r) == 1, "reads an old row");
    return true;
  }
};

/// Two that each write a word and then look at the other's, one of which at least must see the
/// other: a decision that waits for room and a rank that finishes, an arrival and a join, a call
/// that completes and a thread that begins or ends its wait, a ring and a caller that stops
/// driving.
struct BothLookProgram {
  static constexpr WeakShape kShape{.threads = 2, .atomics = 2, .plain = 0};
  static constexpr uint32_t kMostAccesses = 4;
  enum : uint32_t { kStored, kModified };

  template <typename Ops>
  bool Run(uint32_t thread, Ops& ops) const {
    uint8_t seen = 0;
    if (thread == 0) {
      ops.Store(kStored, 1, kSeqCst);
      seen = ops.Load(kModified, kSeqCst);
    } else {
      ops.Modify(kModified, kSeqCst, [](uint8_t) { return 1; });
      seen = ops.Load(kStored, kSeqCst);
    }
    ops.Tell(seen != 0 ? 1 : 2);
    if (ops.Told(0) == 2) ops.Check(ops.Told(1) != 2, "neither sees the other");
    return true;
  }
};

/// Messages for a rank, on a stack that it takes as a whole.
struct MailProgram {
  static constexpr WeakShape kShape{.threads = 3, .atomics = 3, .plain = 2, .kept = 2};
  static constexpr uint32_t kMostAccesses = 10;
  enum : uint32_t { kMail, kNextOfFirst };  // and `next` of the second sender's

  template <typename Ops>
  bool Run(uint32_t thread, Ops& ops) const {
    if (thread < 2) {
      ops.WritePlain(thread, 1);
      uint8_t head = ops.Load(kMail, kRelaxed);
      do {
        ops.Store(kNextOfFirst + thread, head, kRelaxed);
      } while (!ops.CompareExchange(kMail, head, thread + 1, kRelease));
      return true;
    }
    // Both at once, so that the second's word has to show the first's message.
    ops.Await(kMail, kRelaxed, [](uint8_t mail) { return mail != 0; });
    uint8_t word = ops.Modify(kMail, kAcquire, [](uint8_t) { return 0; });
    for (int count = 0; !ops.cut() && word != 0 && count < 2; ++count) {
      ops.Check(ops.ReadPlain(word - 1U) == 1, "reads an old message");
      word = ops.Load(kNextOfFirst + word - 1, kRelaxed);
    }
    return true;
  }
};

/// A slot of the flight ring: a reader keeps what it has read if the number was the same before and
/// after.
struct FlightProgram {
  static constexpr WeakShape kShape{.threads = 2, .atomics = 3, .plain = 0};
  static constexpr uint32_t kMostAccesses = 8;
  static constexpr uint8_t kWriting = 255;
  enum : uint32_t { kNumber, kFirst, kSecond };

  template <typename Ops>
  bool Run(uint32_t thread, Ops& ops) const {
    if (thread == 0) {
      for (uint8_t number : {1, 2}) {
        uint8_t before = number - 1;
        ops.CompareExchange(kNumber, before, kWriting, kAcquire);
        ops.Store(kFirst, number, kRelease);
        ops.Store(kSecond, number, kRelease);
        ops.Store(kNumber, number, kRelease);
      }
      return true;
    }
    const uint8_t number = ops.Load(kNumber, kAcquire);
    const uint8_t first = ops.Load(kFirst, kAcquire);
    const uint8_t second = ops.Load(kSecond, kAcquire);
    if (ops.Load(kNumber, kRelaxed) != number || number == kWriting) return true;
    ops.Check(first == number && second == number, "keeps what is torn");
    return true;
  }
};

/// The lock of a set's part of the control segment.
struct LockProgram {
  static constexpr WeakShape kShape{.threads = 3, .atomics = 1, .plain = 1};
  static constexpr uint32_t kMostAccesses = 10;

  template <typename Ops>
  bool Run(uint32_t thread, Ops& ops) const {
    ops.Await(0, kRelaxed, [](uint8_t owner) { return owner == 0; });
    uint8_t free = 0;
    if (!ops.CompareExchange(0, free, thread + 1, kAcquire)) return false;
    ops.WritePlain(0, ops.ReadPlain(0) + 1);
    ops.Store(0, 0, kRelease);
    return true;
  }
};

/// A coordinator that sleeps on its word until it has taken what ranks have put, and rang for. Runs
/// transport/wake/doorbell_rules.h.
struct BellProgram {
  static constexpr WeakShape kShape{.threads = 3, .atomics = 3, .plain = 0};
  static constexpr uint32_t kMostAccesses = 8;
  enum : uint32_t { kNews, kWord, kAnnounced };

  template <typename Ops>
  struct Atomic {
    Ops& ops;
    uint32_t x;
    [[nodiscard]] uint8_t load(std::memory_order order) const { return ops.Load(x, order); }
    void store(uint32_t value, std::memory_order order) const {
      ops.Store(x, static_cast<uint8_t>(value), order);
    }
    uint8_t exchange(uint32_t value, std::memory_order order) const {
      return ops.Modify(x, order, [&](uint8_t) { return value; });
    }
    uint8_t fetch_add(uint32_t more, std::memory_order order) const {
      return ops.Modify(x, order, [&](uint8_t was) { return was + more; });
    }
  };
  template <typename Ops>
  struct Bell {
    Atomic<Ops> coordinator_word, coordinator;
  };

  template <typename Ops>
  bool Run(uint32_t thread, Ops& ops) const {
    const Bell<Ops> bell{{ops, kWord}, {ops, kAnnounced}};
    if (thread != 0) {
      ops.Modify(kNews, kRelease, [](uint8_t news) { return news + 1; });
      doorbell::WakeCoordinator(bell, [&](const Atomic<Ops>&, uint32_t) { ops.Wake(0); });
      return true;
    }
    const uint8_t seen = ops.Load(kWord, kSeqCst);
    if (ops.Load(kNews, kAcquire) == kShape.threads - 1 && !ops.cut()) return true;
    doorbell::SleepOn(bell.coordinator, bell.coordinator_word, seen, doorbell::kOnFutex,
                      [&] { ops.Sleep(kAnnounced, doorbell::kOnFutex); });
    return false;
  }
};

}  // namespace horoacc::model
