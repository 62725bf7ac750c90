#include "schedule/select.h"

#include <limits>

namespace horoacc {
namespace {

// Up to here a message costs more than its bytes.
constexpr uint64_t kFewMessages = 64 << 10;
constexpr uint64_t kAnySize = std::numeric_limits<uint64_t>::max();
constexpr uint32_t kAnyRanks = std::numeric_limits<uint32_t>::max();

enum class Memory { kShared, kPrivate, kEither };

// The first row that fits is taken. docs/benchmarks.md has the measurements behind the bounds.
struct Row {
  bool reduces_to_all;
  bool adasum;
  Memory memory;
  uint32_t max_ranks;
  uint64_t max_bytes;
  Path path;
};

}  // namespace

const char* NameOf(Path path) {
  constexpr const char* kNames[] = {"none",          "last_arriver", "direct_slices",
                                    "adasum_slices", "flat_windows", "two_phase_windows",
                                    "exchange"};
  return kNames[static_cast<int>(path)];
}

Path SelectPath(const SelectionKey& key, const Settings& settings) {
  const Row table[] = {
      {true, false, Memory::kEither, kAnyRanks, 0, Path::kNone},
      {true, false, Memory::kShared, kAnyRanks, settings.last_arriver_bytes, Path::kLastArriver},
      {true, false, Memory::kShared, kAnyRanks, kAnySize, Path::kDirectSlices},
      {true, true, Memory::kEither, kAnyRanks, 0, Path::kNone},
      {true, true, Memory::kShared, kAnyRanks, settings.last_arriver_bytes, Path::kLastArriver},
      {true, true, Memory::kShared, kAnyRanks, kAnySize, Path::kAdasumSlices},
      {true, false, Memory::kPrivate, 2, kAnySize, Path::kFlatWindows},
      {true, false, Memory::kPrivate, kAnyRanks, kAnySize, Path::kTwoPhaseWindows},
      {false, false, Memory::kEither, kAnyRanks, kAnySize, Path::kExchange},
  };
  for (const Row& row : table) {
    const bool memory_fits =
        row.memory == Memory::kEither || (row.memory == Memory::kShared) == key.shared;
    if (row.reduces_to_all == key.reduces_to_all && row.adasum == key.adasum && memory_fits &&
        key.ranks <= row.max_ranks && key.bytes <= row.max_bytes) {
      return row.path;
    }
  }
  return Path::kNone;
}

std::string_view SelectAlgorithm(const SpreadKey& key, const Settings& settings) {
  using schedule::Goal;
  const bool few_messages = key.bytes <= kFewMessages;
  switch (key.goal) {
    case Goal::kAllreduce:
      if (!settings.algorithm.empty()) return settings.algorithm;
      if (settings.reduction == "canonical") return "canonical";
      if (key.shares_hosts) return few_messages ? "hierarchical_tree" : "hierarchical";
      return few_messages ? "double_tree" : "ring";
    case Goal::kReduceScatter:
      return few_messages ? "log_reduce_scatter" : "ring_reduce_scatter";
    case Goal::kAllGather:
      return few_messages ? "log_all_gather" : "ring_all_gather";
    case Goal::kBroadcast:
      return few_messages ? "tree_broadcast" : "chain_broadcast";
    case Goal::kReduce:
      return few_messages ? "tree_reduce" : "chain_reduce";
    case Goal::kAllToAll:
      return key.shares_hosts && few_messages ? "rail_all_to_all" : "direct_all_to_all";
  }
  return "";
}

}  // namespace horoacc
