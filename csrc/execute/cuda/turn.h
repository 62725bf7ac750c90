#pragma once
// Turns of process sets whose GPUs wait for each other: one set of the host at a time.
#include <atomic>
#include <cstdint>

#include "base/result.h"

namespace horoacc::cuda {

class Team;

/// On the host's board; zeroed memory. Tickets are served in order.
struct alignas(64) TurnBoard {
  std::atomic<uint64_t> tickets{0};  ///< given out
  std::atomic<uint64_t> served{0};   ///< whose turns are over
  std::atomic<uint32_t> left{0};     ///< ranks of the set whose turn it is that are not through
};

/// What a stream or a kernel waits for must not stand behind a wait of another set, neither in a
/// hardware queue nor for want of room on the GPU, and no call of the driver may wait for what only
/// that call's thread will launch elsewhere. Sets of different ranks have no common order, so the
/// host gives them one: a set's waits are enqueued when it is their turn, which is over once they
/// are on all its ranks. Then every wait is for what is enqueued, or will be by a thread that
/// nothing holds up.
///
/// A run that is dropped before it is through has seen the job aborted, and no turn comes after it.
class Turn {
 public:
  explicit Turn(Team& team);
  /// Whether it is this run's. To be asked until it is; `true` from then on.
  [[nodiscard]] bool HasCome();
  /// Nothing of this rank waits any more. Once, after it has come.
  void Pass();

 private:
  Team& team_;
  const uint64_t number_;  ///< among the team's
  uint64_t ticket_ = 0;    ///< the leader's
  bool asked_ = false;
  bool come_ = false;
};

}  // namespace horoacc::cuda
