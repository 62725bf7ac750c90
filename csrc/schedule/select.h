#pragma once
// The path of a collective: one table, in which generated schedules stand beside the fast paths.
#include <cstdint>
#include <string_view>

#include "base/settings.h"
#include "base/tuned.h"
#include "schedule/choice.h"
#include "schedule/schedule.h"

namespace horoacc {

enum class Path : uint8_t {
  kNone,             ///< nothing to move (a barrier, empty tensors)
  kLastArriver,      ///< the last rank to arrive reduces before the others wake
  kDirectSlices,     ///< in place in shared memory, slices claimed by the ranks that run
  kAdasumSlices,     ///< Adasum, in shared memory, in chunks claimed by the ranks that run
  kFlatWindows,      ///< private memory, every rank reduces everything
  kTwoPhaseWindows,  ///< private memory, slices reduced once and copied out by all
  kExchange,         ///< every rank takes its part from the buffers that its peers show
  kEager,            ///< the root has reduced inputs that came with the announcements
  kSchedule,         ///< over data links, by the algorithm that SelectAlgorithm names
  kComposed,  ///< between hosts: sums inside hosts, in memory that all see, and a schedule of them
  kComposedWindows,  ///< the same of private memory, which passes through windows
  kNccl,             ///< by NCCL, across hosts; inside a host GPUs agree on a mode by themselves
};
inline constexpr int kPathCount = 12;
[[nodiscard]] const char* NameOf(Path path);

/// The facts on which the choice depends; all ranks agree on them.
struct SelectionKey {
  bool reduces_to_all = false;  ///< allreduce
  bool adasum = false;          ///< its memory is always shared: private memory is staged
  bool shared = false;          ///< every rank sees every buffer
  uint64_t bytes = 0;           ///< of the whole bucket
  uint32_t ranks = 1;
};

[[nodiscard]] Path SelectPath(const SelectionKey& key, uint64_t last_arriver_bytes);

/// The same facts for a schedule between ranks that do not all share memory.
struct MultiHostKey {
  schedule::Goal goal = schedule::Goal::kAllreduce;
  uint64_t bytes = 0;  ///< of the vector; unequal parts count as the longest
};

/// The name of the algorithm of a way, or "" if it names none.
[[nodiscard]] std::string_view AlgorithmOf(const Way& way);
/// Whether its algorithm, if it names one, is one of allreduces.
[[nodiscard]] bool IsPossible(const Way& way);

/// The name of the algorithm that the settings force, else of the best possible one.
/// The setting `reduction` says whether sums are always made in the order of the ranks, in any
/// order, or in rank order where that is cheap.
[[nodiscard]] std::string_view SelectAlgorithm(const MultiHostKey& key, const Settings& settings,
                                               schedule::AlgorithmChoice& choice);

/// The algorithm that the setting `algorithm` names for this goal, or "".
[[nodiscard]] std::string_view ForcedAlgorithm(schedule::Goal goal, const Settings& settings);

/// kConfig if the setting `algorithm` names an unknown one, or two for one goal.
[[nodiscard]] Status CheckForced(const Settings& settings);

}  // namespace horoacc
