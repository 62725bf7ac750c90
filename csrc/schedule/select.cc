#include "schedule/select.h"

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "schedule/algorithms.h"

namespace horoacc {
namespace {

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

// The parts of the text between commas.
std::vector<std::string_view> Names(std::string_view text) {
  std::vector<std::string_view> names;
  while (!text.empty()) {
    const size_t end = text.find(',');
    names.push_back(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  return names;
}

}  // namespace

const char* NameOf(Path path) {
  constexpr const char* kNames[] = {
      "none",         "last_arriver",      "direct_slices",    "adasum_slices",
      "flat_windows", "two_phase_windows", "exchange",         "eager",
      "schedule",     "composed",          "composed_windows", "nccl"};
  return kNames[static_cast<int>(path)];
}

Path SelectPath(const SelectionKey& key, uint64_t last_arriver_bytes) {
  const Row table[] = {
      {true, false, Memory::kEither, kAnyRanks, 0, Path::kNone},
      {true, false, Memory::kShared, kAnyRanks, last_arriver_bytes, Path::kLastArriver},
      {true, false, Memory::kShared, kAnyRanks, kAnySize, Path::kDirectSlices},
      {true, true, Memory::kEither, kAnyRanks, 0, Path::kNone},
      {true, true, Memory::kShared, kAnyRanks, last_arriver_bytes, Path::kLastArriver},
      {true, true, Memory::kEither, kAnyRanks, kAnySize, Path::kAdasumSlices},
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

std::string_view AlgorithmOf(const Way& way) {
  return way.algorithm == 0 ? "" : schedule::Algorithms()[way.algorithm - 1].name;
}

bool IsPossible(const Way& way) {
  const auto algorithms = schedule::Algorithms();
  return way.algorithm == 0 || (way.algorithm <= algorithms.size() &&
                                algorithms[way.algorithm - 1].goal == schedule::Goal::kAllreduce);
}

std::string_view ForcedAlgorithm(schedule::Goal goal, const Settings& settings) {
  for (const std::string_view name : Names(settings.algorithm)) {
    const auto found = schedule::FindAlgorithm(name);
    if (found.ok() && found.value()->goal == goal) return found.value()->name;
  }
  return "";
}

Status CheckForced(const Settings& settings) {
  std::map<schedule::Goal, std::string_view> forced;
  for (const std::string_view name : Names(settings.algorithm)) {
    Result<const schedule::Algorithm*> found = schedule::FindAlgorithm(name);
    if (!found.ok()) {
      return MakeError(ErrorKind::kConfig, "setting 'algorithm' cannot be '" + settings.algorithm +
                                               "': " + found.error().message);
    }
    const auto [other, first] = forced.emplace(found.value()->goal, name);
    if (first) continue;
    return MakeError(ErrorKind::kConfig, "setting 'algorithm' cannot be '" + settings.algorithm +
                                             "': " + std::string(other->second) + " and " +
                                             std::string(name) + " are for the same collective");
  }
  return {};
}

std::string_view SelectAlgorithm(const MultiHostKey& key, const Settings& settings,
                                 schedule::AlgorithmChoice& choice) {
  if (const std::string_view forced = ForcedAlgorithm(key.goal, settings); !forced.empty())
    return forced;
  using schedule::Goal;
  const bool reduces =
      key.goal == Goal::kAllreduce || key.goal == Goal::kReduceScatter || key.goal == Goal::kReduce;
  const bool in_rank_order =
      settings.reduction == "canonical" ||
      (settings.reduction == "auto" && reduces && choice.RankOrderIsCheap(key.goal));
  return choice.For(key.goal, key.bytes, reduces && in_rank_order);
}

}  // namespace horoacc
