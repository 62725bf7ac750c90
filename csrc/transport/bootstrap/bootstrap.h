#pragma once
// How the ranks of a job find each other before any link exists.
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace horoacc {

/// Exchanges small blobs among all ranks. Called by one thread of a rank, all ranks in the same
/// order. Implementations: tcp rendezvous, MPI, inproc.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  /// Every rank gives a blob and gets those of all ranks, by rank. kTimeout names the ranks that
  /// are missing when `deadline_ns` (CLOCK_MONOTONIC) passes.
  virtual Result<std::vector<std::string>> AllGather(const std::string& blob,
                                                     int64_t deadline_ns) = 0;
};

// Every rank calls the following functions.

/// AllGather of a step's results. If the step failed on a rank, all ranks get the same kConfig:
/// "rank 2<task>: <its error>", with the culprit of that error, or else the rank.
Result<std::vector<std::string>> GatherOrFail(Bootstrap& bootstrap, const Result<std::string>& own,
                                              const std::string& task, int64_t deadline_ns);

/// A secret for a job that got none from its launcher (plain mpirun): rank 0 draws it, and MPI,
/// which the ranks trust anyway, carries it to the others.
Result<std::string> DrawSecret(Bootstrap& bootstrap, int64_t deadline_ns);

/// An unpredictable number, the same on all ranks and different at every init. Every handshake and
/// every frame of the links carries it, so that messages of an earlier init, or of a rank that
/// missed its end, cannot enter a later one.
Result<uint64_t> DrawEpoch(Bootstrap& bootstrap, int64_t deadline_ns);

}  // namespace horoacc
