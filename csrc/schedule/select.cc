#include "schedule/select.h"

#include <limits>

namespace horoacc {
namespace {

constexpr uint64_t kAnySize = std::numeric_limits<uint64_t>::max();
constexpr uint32_t kAnyRanks = std::numeric_limits<uint32_t>::max();

enum class Memory { kShared, kPrivate, kEither };

// The first row that fits is taken. docs/benchmarks.md has the measurements behind the bounds.
struct Row {
  bool reduces_to_all;
  Memory memory;
  uint32_t max_ranks;
  uint64_t max_bytes;
  Path path;
};

}  // namespace

const char* NameOf(Path path) {
  constexpr const char* kNames[] = {"none",         "last_arriver",      "direct_slices",
                                    "flat_windows", "two_phase_windows", "exchange"};
  return kNames[static_cast<int>(path)];
}

Path SelectPath(const SelectionKey& key, const Settings& settings) {
  const Row table[] = {
      {true, Memory::kEither, kAnyRanks, 0, Path::kNone},
      {true, Memory::kShared, kAnyRanks, settings.last_arriver_bytes, Path::kLastArriver},
      {true, Memory::kShared, kAnyRanks, kAnySize, Path::kDirectSlices},
      {true, Memory::kPrivate, 2, kAnySize, Path::kFlatWindows},
      {true, Memory::kPrivate, kAnyRanks, kAnySize, Path::kTwoPhaseWindows},
      {false, Memory::kEither, kAnyRanks, kAnySize, Path::kExchange},
  };
  for (const Row& row : table) {
    const bool memory_fits =
        row.memory == Memory::kEither || (row.memory == Memory::kShared) == key.shared;
    if (row.reduces_to_all == key.reduces_to_all && memory_fits && key.ranks <= row.max_ranks &&
        key.bytes <= row.max_bytes) {
      return row.path;
    }
  }
  return Path::kNone;
}

}  // namespace horoacc
