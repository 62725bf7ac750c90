#pragma once
// Memory as C++ orders it, which is weaker than any order in which threads take turns: a load may
// find an older value than the latest, and an acquire that finds what a release has stored sees
// what the storing thread had seen. What the memory model gives to views and clocks here follows
// J. Kang et al., "A Promising Semantics for Relaxed-Memory Concurrency" (2017), without promises
// (no load finds what its own thread stores later), and C. Flanagan and S. Freund, "FastTrack"
// (2009), for races on plain memory. Stores to an atomic take their order from their steps.
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "model/explore.h"
#include "model/replay.h"

namespace horoacc::model {

struct WeakShape {
  uint32_t threads;
  uint32_t atomics;
  uint32_t plain;
  uint32_t kept = 3;  ///< writes of an atomic: a load finds one of the last so many
};

template <WeakShape kShape>
struct WeakMemory {
  /// What a thread has seen, and what a write shows to those that acquire it.
  struct View {
    uint8_t at[kShape.atomics];     ///< number of the latest write, by atomic
    uint8_t clock[kShape.threads];  ///< how far each thread was
    void Join(const View& other) {
      for (uint32_t x = 0; x < kShape.atomics; ++x) at[x] = std::max(at[x], other.at[x]);
      for (uint32_t t = 0; t < kShape.threads; ++t) clock[t] = std::max(clock[t], other.clock[t]);
    }
  };
  struct Write {
    uint8_t value;
    View view;
  };
  struct Atomic {
    uint8_t last;          ///< number of the latest write; write 0 is the initial zero
    uint8_t last_seq_cst;  ///< that of the latest that is sequentially consistent
    Write writes[kShape.kept];
    [[nodiscard]] Write& Number(uint32_t number) { return writes[number % kShape.kept]; }
  };
  struct Plain {
    uint8_t value;
    uint8_t writer, written;       ///< the thread that wrote last, and its clock then
    uint8_t read[kShape.threads];  ///< each thread's clock when it last read
  };
  Atomic atomics[kShape.atomics];
  Plain plain[kShape.plain + 1];
  View views[kShape.threads];

  static bool Acquires(std::memory_order order) {
    return order != std::memory_order_relaxed && order != std::memory_order_release;
  }
  static bool Releases(std::memory_order order) {
    return order >= std::memory_order_release;  // and acq_rel, seq_cst
  }

  /// May the thread find the value that is `back` writes older than the latest?
  [[nodiscard]] bool MayLoad(uint32_t thread, uint32_t x, std::memory_order order,
                             uint32_t back) const {
    const Atomic& atomic = atomics[x];
    if (back >= kShape.kept || back > atomic.last) return false;
    const uint32_t number = atomic.last - back;
    return number >= views[thread].at[x] &&
           (order != std::memory_order_seq_cst || number >= atomic.last_seq_cst);
  }
  uint8_t Load(uint32_t thread, uint32_t x, std::memory_order order, uint32_t back) {
    Atomic& atomic = atomics[x];
    const uint32_t number = atomic.last - back;
    const Write& write = atomic.Number(number);
    views[thread].at[x] = static_cast<uint8_t>(number);
    if (Acquires(order)) views[thread].Join(write.view);
    return write.value;
  }
  void Store(uint32_t thread, uint32_t x, uint8_t value, std::memory_order order) {
    Put(thread, x, value, order, View{});
  }
  /// Reads the latest write and stores behind it; what that write shows, this one shows as well.
  uint8_t Exchange(uint32_t thread, uint32_t x, uint8_t value, std::memory_order order) {
    const Write before = atomics[x].Number(atomics[x].last);
    (void)Load(thread, x, order, 0);
    Put(thread, x, value, order, before.view);
    return before.value;
  }
  [[nodiscard]] uint8_t Latest(uint32_t x) const {
    return const_cast<WeakMemory*>(this)->atomics[x].Number(atomics[x].last).value;
  }

  /// False: another thread's write is not known to be over.
  bool ReadPlain(uint32_t thread, uint32_t x, uint8_t* value) {
    Plain& cell = plain[x];
    const View& view = views[thread];
    cell.read[thread] = static_cast<uint8_t>(view.clock[thread] + 1);
    *value = cell.value;
    return IsOver(view, cell.writer, cell.written, thread);
  }
  /// False: nor is another thread's read.
  bool WritePlain(uint32_t thread, uint32_t x, uint8_t value) {
    Plain& cell = plain[x];
    const View& view = views[thread];
    bool over = IsOver(view, cell.writer, cell.written, thread);
    for (uint32_t t = 0; t < kShape.threads; ++t)
      over = over && IsOver(view, static_cast<uint8_t>(t), cell.read[t], thread);
    cell.writer = static_cast<uint8_t>(thread);
    cell.written = static_cast<uint8_t>(view.clock[thread] + 1);
    cell.value = value;
    return over;
  }

 private:
  static bool IsOver(const View& view, uint8_t whose, uint8_t when, uint32_t thread) {
    return whose == thread || view.clock[whose] >= when;
  }
  void Put(uint32_t thread, uint32_t x, uint8_t value, std::memory_order order, View shown) {
    Atomic& atomic = atomics[x];
    View& own = views[thread];
    own.at[x] = ++atomic.last;
    shown.at[x] = atomic.last;
    if (Releases(order)) {
      ++own.clock[thread];
      shown.Join(own);
    }
    if (order == std::memory_order_seq_cst) atomic.last_seq_cst = atomic.last;
    atomic.Number(atomic.last) = {value, shown};
  }
};

/// A careless order: of all accesses of a kind to an atomic.
struct Weakening {
  enum class Of : uint8_t { kNothing, kLoads, kStores, kModifications };
  Of of = Of::kNothing;
  uint32_t atomic = 0;
  std::memory_order to = std::memory_order_relaxed;
};

/// Threads that each run a program over such memory: Program has kShape and `bool Run(thread,
/// Ops&)`, which is run to its end again and again until it gives true.
template <typename Program>
class WeakModel {
 public:
  static constexpr WeakShape kShape = Program::kShape;
  using Memory = WeakMemory<kShape>;
  struct State {
    Memory memory;
    AccessLog<Program::kMostAccesses> log[kShape.threads];
    uint8_t done[kShape.threads];
    uint8_t asleep[kShape.threads];
    uint8_t told[kShape.threads];  ///< what a program has found
  };

  /// What a program does to memory.
  class Ops {
   public:
    Ops(State& state, const WeakModel& model, uint32_t thread, uint32_t back, const char** wrong)
        : s_(state),
          model_(model),
          thread_(thread),
          back_(back),
          wrong_(wrong),
          accesses_(state.log[thread]) {}
    [[nodiscard]] const Accesses& accesses() const { return accesses_; }
    [[nodiscard]] bool cut() const { return accesses_.cut(); }

    uint8_t Load(uint32_t x, std::memory_order order) {
      const std::memory_order as = model_.OrderOf(order, Weakening::Of::kLoads, x);
      if (accesses_.fresh() && !s_.memory.MayLoad(thread_, x, as, back_)) return Block();
      return accesses_.Do([&] { return s_.memory.Load(thread_, x, as, back_); });
    }
    /// A load that is repeated until its value is good.
    template <typename Good>
    uint8_t Await(uint32_t x, std::memory_order order, const Good& good) {
      const std::memory_order as = model_.OrderOf(order, Weakening::Of::kLoads, x);
      if (accesses_.fresh()) {
        Memory copy = s_.memory;
        if (!copy.MayLoad(thread_, x, as, back_) || !good(copy.Load(thread_, x, as, back_)))
          return Block();
      }
      return accesses_.Do([&] { return s_.memory.Load(thread_, x, as, back_); });
    }
    void Store(uint32_t x, uint8_t value, std::memory_order order) {
      const std::memory_order as = model_.OrderOf(order, Weakening::Of::kStores, x);
      Only([&] {
        s_.memory.Store(thread_, x, value, as);
        return uint8_t{0};
      });
    }
    template <typename Next>
    uint8_t Modify(uint32_t x, std::memory_order order, const Next& next) {
      const std::memory_order as = model_.OrderOf(order, Weakening::Of::kModifications, x);
      return Only([&] {
        return s_.memory.Exchange(thread_, x, static_cast<uint8_t>(next(s_.memory.Latest(x))), as);
      });
    }
    /// If it fails, `seen` is the latest value, loaded relaxed.
    bool CompareExchange(uint32_t x, uint8_t& seen, uint8_t value, std::memory_order order) {
      const std::memory_order as = model_.OrderOf(order, Weakening::Of::kModifications, x);
      const uint8_t found = Only([&] {
        if (s_.memory.Latest(x) != seen)
          return s_.memory.Load(thread_, x, std::memory_order_relaxed, 0);
        return s_.memory.Exchange(thread_, x, value, as);
      });
      if (cut() || found == seen) return true;
      seen = found;
      return false;
    }
    uint8_t ReadPlain(uint32_t x) {
      return Only([&] {
        uint8_t value = 0;
        if (!s_.memory.ReadPlain(thread_, x, &value)) *wrong_ = "reads what another thread writes";
        return value;
      });
    }
    void WritePlain(uint32_t x, uint8_t value) {
      Only([&] {
        if (!s_.memory.WritePlain(thread_, x, value)) *wrong_ = "writes what another thread uses";
        return uint8_t{0};
      });
    }
    /// The kernel's: sleeps if the word still has that value.
    void Sleep(uint32_t x, uint8_t value) {
      Only([&] { return s_.asleep[thread_] = s_.memory.Latest(x) == value ? 1 : 0; });
      if (accesses_.fresh() && s_.asleep[thread_] != 0) return (void)Block();
      Only([&] { return uint8_t{0}; });
    }
    void Wake(uint32_t thread) {
      Only([&] { return s_.asleep[thread] = 0; });
    }
    void Tell(uint8_t what) {
      Only([&] { return s_.told[thread_] = what; });
    }
    [[nodiscard]] uint8_t Told(uint32_t thread) {
      return Only([&] { return s_.told[thread]; });
    }
    void Check(bool good, const char* what) {
      if (!cut() && !good) *wrong_ = what;
    }

   private:
    uint8_t Block() {
      accesses_.Block();
      return 0;
    }
    // There is nothing to choose.
    template <typename Access>
    uint8_t Only(const Access& access) {
      if (accesses_.fresh() && back_ != 0) return Block();
      return accesses_.Do(access);
    }

    State& s_;
    const WeakModel& model_;
    const uint32_t thread_, back_;
    const char** const wrong_;
    Accesses accesses_;
  };

  explicit WeakModel(Program program, Weakening weakening = {})
      : program_(program), weakening_(weakening) {}
  [[nodiscard]] State initial() const { return {}; }
  [[nodiscard]] uint32_t processes() const { return kShape.threads * kShape.kept; }
  [[nodiscard]] bool Done(const State& s) const {
    return std::ranges::all_of(s.done, [](uint8_t done) { return done != 0; });
  }
  Outcome Step(State& s, uint32_t process, const char** wrong) const {
    const uint32_t thread = process / kShape.kept;
    if (s.done[thread] != 0) return Outcome::kBlocked;
    Ops ops(s, *this, thread, process % kShape.kept, wrong);
    const bool over = program_.Run(thread, ops);
    if (ops.accesses().blocked()) return Outcome::kBlocked;
    if (ops.cut()) return Outcome::kMoved;
    s.done[thread] = over ? 1 : 0;
    s.log[thread] = {};
    return Outcome::kMoved;
  }

 private:
  [[nodiscard]] std::memory_order OrderOf(std::memory_order order, Weakening::Of of,
                                          uint32_t x) const {
    return weakening_.of == of && weakening_.atomic == x ? weakening_.to : order;
  }

  const Program program_;
  const Weakening weakening_;
};

}  // namespace horoacc::model
