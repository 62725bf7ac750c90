#pragma once
// The messages of a bootstrap: every rank sends its blob to rank 0, which answers it, or sends an
// error.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace horoacc {

enum GatherKind : uint32_t {
  kGatherWelcome = 1,  ///< all ranks are here
  kGatherFailure = 2,  ///< a packed Error; nothing follows
  kGatherBlob = 3,
  kGatherAnswer = 4,
};

inline constexpr uint64_t kLongestBlob = 64ULL << 20;
inline constexpr uint64_t kLongestAnswer = 1ULL << 30;

[[nodiscard]] std::span<const std::byte> BytesOf(const std::string& text);
[[nodiscard]] std::string TextOf(std::span<const std::byte> bytes);

[[nodiscard]] std::string PackError(const Error& error);
[[nodiscard]] Error UnpackError(std::span<const std::byte> bytes);

[[nodiscard]] std::string PackTable(const std::vector<std::string>& blobs);
Result<std::vector<std::string>> UnpackTable(std::span<const std::byte> bytes, int size);

/// Numbers in which equal ones follow each other, and the runs are alike, in few bytes: hosts of
/// eight ranks each are one entry, however many there are.
[[nodiscard]] std::string PackRuns(const std::vector<int>& numbers);
/// `count` numbers.
Result<std::vector<int>> UnpackRuns(const std::string& text, int count);

/// Names in few bytes where they are equal or count up, as "node001" to "node128" do: one entry.
[[nodiscard]] std::string PackNames(const std::vector<std::string>& names);
/// At most `count` names.
Result<std::vector<std::string>> UnpackNames(const std::string& text, int count);

/// "1, 4, 7" for the ranks of which `present` is false; at most ten are named.
[[nodiscard]] std::string NamesOfMissing(const std::vector<bool>& present);

/// kTimeout that names the ranks of which `present` is false. There is at least one.
[[nodiscard]] Error StillMissing(const std::vector<bool>& present);

/// How much longer than rank 0 the others wait, so that it can still send them the missing ranks.
inline constexpr int64_t kVerdictGraceNs = 2'000'000'000;
[[nodiscard]] int64_t WithVerdictGrace(int64_t deadline_ns);

}  // namespace horoacc
