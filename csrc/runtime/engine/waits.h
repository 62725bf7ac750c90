#pragma once
// Waiting for a call: the caller drives the engine itself while no other thread does.
#include <cstdint>
#include <memory>
#include <optional>

#include "runtime/engine/driver.h"
#include "runtime/health/deadlines.h"
#include "runtime/health/liveness.h"
#include "runtime/health/stall_watch.h"

namespace horoacc {

/// What every thread that waits for other ranks looks at now and then.
struct Watches {
  Liveness& liveness;
  StallWatch& stalls;
  Deadlines& deadlines;

  void Look() const {
    liveness.Look();
    stalls.Look();
    deadlines.Look();
  }
};

/// Any thread.
class Waits {
 public:
  Waits(Job& job, Failure& failure, SetTable& sets, Completion& completion, Driver& driver,
        Watches watches)
      : job_(job),
        failure_(failure),
        sets_(sets),
        completion_(completion),
        driver_(driver),
        watches_(watches) {}

  [[nodiscard]] bool Poll(Entry& entry);
  Status Wait(Entry& entry, int64_t deadline_ns);

 private:
  Status AwaitOutcome(Entry& entry, int64_t deadline_ns);
  /// Drives, unless another thread does: then false.
  bool TryDrive(Entry& entry, int64_t now, int64_t deadline_ns);
  /// Drives until the entry is complete or the deadline has come.
  void Drive(Driver::Lock& lock, Entry& entry, int64_t deadline_ns);
  /// Looks at the doorbell, at GPUs and at links for a short while. True if something came.
  /// `woken`: no sleep before it ended by its own deadline.
  bool Spin(Driver::Lock& lock, uint32_t seen, bool linked, bool woken);
  /// A caller needs the entry before it goes on: buckets of which this rank has submitted only a
  /// part, in whatever set, must not wait for the rest.
  void SayBlocked(Entry& entry);

  Job& job_;
  Failure& failure_;
  SetTable& sets_;
  Completion& completion_;
  Driver& driver_;
  const Watches watches_;
  // The driver's: see Spin.
  bool hosts_answer_soon_ = false;
  int64_t leaves_core_until_ = 0;
};

}  // namespace horoacc
