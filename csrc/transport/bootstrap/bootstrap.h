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
  /// Every rank gives a blob and gets everybody's, by rank. kTimeout names the ranks that are
  /// missing when `deadline_ns` (CLOCK_MONOTONIC) passes.
  virtual Result<std::vector<std::string>> AllGather(const std::string& blob,
                                                     int64_t deadline_ns) = 0;
};

}  // namespace horoacc
