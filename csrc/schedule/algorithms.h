#pragma once
// The generated algorithms by name, each with the cost that it is said to have.
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/result.h"
#include "schedule/schedule.h"
#include "schedule/topology.h"

namespace horoacc::schedule {

/// The arguments of a generator. Every rank must give the same.
struct Plan {
  Topology topology;
  uint32_t root = 0;   ///< of broadcast and reduce
  uint32_t trees = 4;  ///< of `trees`, at most kMostTrees
};

inline constexpr uint32_t kMostRanks = 65536;  ///< a step counts chunks in 16 bits
/// The tables of `canonical` grow with the square of the blocks; these take 150 MB if no ranks
/// share a host.
inline constexpr uint32_t kMostCanonicalRanks = 2048;

/// Part of S, the bytes of the whole vector.
struct Fraction {
  uint64_t over = 0, under = 1;
  friend bool operator==(const Fraction& a, const Fraction& b) {
    return a.over * b.under == b.over * a.under;
  }
};

/// How a vector is cut. All ranks derive the same cut from the schedule.
struct Cut {
  uint64_t window_bytes = uint64_t{4} << 20;     ///< unless a setting says otherwise
  uint64_t under_way_bytes = uint64_t{8} << 20;  ///< of windows; at least two are under way
  uint64_t slice_bytes = uint64_t{256} << 10;    ///< of a message, approximately
};
/// How many windows of that size are under way at a time.
[[nodiscard]] uint32_t WindowsUnderWay(const Cut& cut, uint64_t window_bytes);

struct Algorithm {
  std::string_view name;
  Goal goal;
  bool by_hosts;  ///< depends on which ranks share a host
  std::unique_ptr<Schedule> (*make)(const Plan& plan);
  /// The bytes that `rank` sends, in closed form; the prover counts and compares.
  Fraction (*sent)(const Plan& plan, uint32_t rank);
  /// The longest chain of messages that wait for each other, if all hosts are of one size (and of
  /// 2^k ranks, where sums are made in the order of the ranks); otherwise at most that.
  uint32_t (*rounds)(const Plan& plan);
  uint32_t most_ranks = kMostRanks;  ///< fewer if a schedule keeps tables
  bool in_rank_order = false;        ///< as Facts says
  Cut (*cut)(const Facts& facts) = [](const Facts&) { return Cut{}; };  ///< between hosts
};

inline constexpr uint32_t kMostTrees = 16;  ///< a tree has two of 32 lanes

/// kInvalid names the reason why no schedule can be made.
[[nodiscard]] Status CheckPlan(const Plan& plan);
[[nodiscard]] Status CheckPlan(const Algorithm& algorithm, const Plan& plan);

[[nodiscard]] std::span<const Algorithm> Algorithms();
/// kInvalid names the algorithms that there are.
[[nodiscard]] Result<const Algorithm*> FindAlgorithm(std::string_view name);

}  // namespace horoacc::schedule
