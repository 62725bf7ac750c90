#pragma once
// A collective algorithm as data: a pure function from (rank, lane, k) to a step.
#include <cstdint>

#include "schedule/step.h"

namespace horoacc::schedule {

/// The content of the outputs when every lane of every rank has ended.
enum class Goal : uint8_t {
  kAllreduce,      ///< every rank: the reduction of every chunk
  kReduceScatter,  ///< rank r: the reduction of chunk r
  kAllGather,      ///< every rank: chunk r as rank r gave it
  kBroadcast,      ///< every rank: every chunk as the root gave it
  kReduce,         ///< the root: the reduction of every chunk
  kAllToAll,       ///< rank r, chunk s: chunk r of rank s's input
};

/// The part of the vector that a chunk of scratch holds, which gives its size: a chunk of the
/// vector, and in an all-to-all also the rank that sent it.
struct Part {
  uint32_t chunk = 0;
  uint32_t source = 0;
};

struct Facts {
  Goal goal = Goal::kAllreduce;
  uint32_t ranks = 1;
  uint32_t lanes = 1;   ///< each runs its steps in order, once for each window
  uint32_t chunks = 1;  ///< parts into which a window's vector is cut
  uint32_t root = 0;
  /// Moving every rank by one host maps the schedule onto itself, but for the names of chunks.
  bool hosts_alike = false;
  /// Every sum is made along the balanced binary tree over the numbers of the ranks: n of them
  /// split at the largest power of two below n. So the result is the same, to the bit, on any
  /// hosts.
  bool in_rank_order = false;
};

/// No member depends on anything but its arguments and those of the constructor, so all ranks see
/// the same schedule and none has to keep it.
class Schedule {
 public:
  explicit Schedule(const Facts& facts) : facts_(facts) {}
  virtual ~Schedule() = default;
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;

  [[nodiscard]] const Facts& facts() const { return facts_; }
  /// Chunks of scratch that a window in flight needs on `rank`.
  [[nodiscard]] virtual uint32_t scratch([[maybe_unused]] uint32_t rank) const { return 0; }
  /// The content of a chunk of scratch; in a reduction an unfinished sum.
  [[nodiscard]] virtual Part kept([[maybe_unused]] uint32_t rank, uint32_t chunk) const {
    return {chunk, 0};
  }
  [[nodiscard]] virtual uint32_t steps(uint32_t rank, uint32_t lane) const = 0;
  /// The k-th step of a lane, k < steps(rank, lane).
  [[nodiscard]] virtual Step step(uint32_t rank, uint32_t lane, uint32_t k) const = 0;

 private:
  const Facts facts_;
};

}  // namespace horoacc::schedule
