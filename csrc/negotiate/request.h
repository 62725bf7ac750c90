#pragma once
// A collective call as one rank submits it, in a form that ranks can compare.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dims.h"
#include "base/dtype.h"
#include "base/few.h"
#include "base/result.h"
#include "base/tuned.h"

namespace horoacc {

/// The numbers of ha_collective.
enum class Collective : uint8_t {
  kAllreduce = 0,
  kAllgather = 1,
  kBroadcast = 2,
  kAlltoall = 3,
  kReducescatter = 4,
  kBarrier = 5,
  kReduce = 6,
  kGather = 7,
  kScatter = 8,  ///< shapes are those of the results: the root's input is one for every rank
  kMonitoredBarrier = 9,  ///< a barrier that no other one is taken for
  kJoin = 10,
};
inline constexpr int kCollectiveCount =
    10;  ///< that ranks submit requests for; join is none of them
/// Has no tensors.
[[nodiscard]] constexpr bool IsBarrier(Collective collective) {
  return collective == Collective::kBarrier || collective == Collective::kMonitoredBarrier;
}
/// One rank gives to all others, or gets from them.
[[nodiscard]] constexpr bool HasRoot(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kReduce ||
         collective == Collective::kGather || collective == Collective::kScatter;
}
[[nodiscard]] constexpr bool Reduces(Collective collective) {
  return collective == Collective::kAllreduce || collective == Collective::kReducescatter ||
         collective == Collective::kReduce;
}
/// Ranks may give different numbers of rows.
[[nodiscard]] constexpr bool FirstDimensionIsFree(Collective collective) {
  return collective == Collective::kAllgather || collective == Collective::kAlltoall;
}
[[nodiscard]] const char* NameOf(Collective collective);
/// The name of an unnamed call in messages; `number`: how many the rank had submitted before it.
[[nodiscard]] std::string NameOfUnnamed(Collective collective, uint64_t number);

/// Type and shape of one tensor of a request.
struct TensorMeta {
  DType type = DType::kFloat32;
  Dims shape;
  [[nodiscard]] uint64_t count() const;
  [[nodiscard]] uint64_t bytes() const { return count() * SizeOf(type); }
  bool operator==(const TensorMeta&) const = default;
};

/// What a rank proposes to the others with a call (runtime/engine/locked_plan.h), or several ranks.
struct Proposal {
  uint64_t plan = 0;    ///< 0: nothing; of several ranks: not all the same
  uint64_t number = 0;  ///< that the plan has if all agree; of several ranks: the highest
  [[nodiscard]] Proposal With(const Proposal& other) const {
    return *this == other ? *this : Proposal{0, std::max(number, other.number)};
  }
  bool operator==(const Proposal&) const = default;
};

/// Whether a call comes again and again. Then no bucket fuses it with others, and hosts may begin
/// it without a message (multi_host/grants.h).
enum class Recurs : uint8_t {
  kNo,
  kInPlan,  ///< it is a bucket of a locked plan
  kByName,  ///< by its name: the caller says so
};

struct Request {
  Collective collective = Collective::kAllreduce;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  int32_t root = 0;  ///< global rank
  Few<TensorMeta> tensors;
  std::vector<int64_t> splits;  ///< alltoall: one per rank of the set, in rows
  /// alltoall: rows that the caller's output has room for, from each rank; empty: for all.
  std::vector<int64_t> receives;
  bool on_gpu = false;      ///< the tensors lie in a GPU's memory
  Way way;                  ///< of an allreduce, as the ranks have agreed
  std::string local_error;  ///< why this rank's call is invalid; every rank then gets an error

  /// Equal on two ranks if and only if their requests fit together (up to a hash collision).
  [[nodiscard]] uint64_t Signature() const;
  /// The same in everything, also where ranks may differ.
  bool operator==(const Request&) const = default;
};

/// Rows that a rank of an alltoall sends to member `to` of `ranks`.
[[nodiscard]] int64_t SplitOf(const Request& request, size_t to, size_t ranks);

}  // namespace horoacc
