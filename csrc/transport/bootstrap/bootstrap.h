#pragma once
// How the ranks of a job find each other before any link exists.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"

namespace horoacc {

/// Exchanges small blobs among all ranks. Called by one thread of a rank, all ranks in the same
/// order. Implementations: tcp rendezvous, MPI, inproc.
class Bootstrap {
 public:
  /// Rank 0's answers, by rank, to the blobs of all ranks.
  using Answers =
      std::function<Result<std::vector<std::string>>(const std::vector<std::string>& blobs)>;

  virtual ~Bootstrap() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  /// Every rank gives the result of a step, and gets its answer; only rank 0 calls `answers`. If
  /// the step failed on a rank, all ranks get the same kConfig: "rank 2<task>: <its error>", with
  /// the culprit of that error, or else the rank; an error of `answers` is every rank's. kTimeout
  /// names the ranks that are missing when `deadline_ns` (CLOCK_MONOTONIC) passes.
  Result<std::string> Exchange(const Result<std::string>& own, const std::string& task,
                               const Answers& answers, int64_t deadline_ns);
  /// Every rank gets the blobs of all ranks, by rank. The bytes grow with the square of the ranks:
  /// only for what each rank needs of each other.
  Result<std::vector<std::string>> AllGather(const Result<std::string>& own,
                                             const std::string& task, int64_t deadline_ns);
  Result<std::vector<std::string>> AllGather(const std::string& blob, int64_t deadline_ns) {
    return AllGather(Result<std::string>(blob), "", deadline_ns);
  }
  /// Every rank gets rank 0's blob.
  Result<std::string> Broadcast(const std::string& blob, int64_t deadline_ns);
  /// Waits for all ranks; an error as of Exchange.
  Status Barrier(const Status& own, const std::string& task, int64_t deadline_ns);

 protected:
  using RawAnswers = std::function<std::vector<std::string>(std::vector<std::string> blobs)>;
  virtual Result<std::string> Round(const std::string& blob, const RawAnswers& answers,
                                    int64_t deadline_ns) = 0;
};

// Every rank calls the following functions.

/// A secret for a job that got none from its launcher (plain mpirun): rank 0 draws it, and MPI,
/// which the ranks trust anyway, carries it to the others.
Result<std::string> DrawSecret(Bootstrap& bootstrap, int64_t deadline_ns);

/// An unpredictable number, the same on all ranks and different at every init. Every handshake and
/// every frame of the links carries it, so that messages of an earlier init, or of a rank that
/// missed its end, cannot enter a later one.
Result<uint64_t> DrawEpoch(Bootstrap& bootstrap, int64_t deadline_ns);

}  // namespace horoacc
