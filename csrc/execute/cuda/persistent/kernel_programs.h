#pragma once
// The programs of a GPU group's persistent kernels, and their places in its ranks' memory. All
// ranks ask for the same programs in the same order, and so find the same places.
#include <cstdint>
#include <list>
#include <string>

#include "execute/cuda/persistent/kernel_compiler.h"

namespace horoacc::cuda {

/// An allreduce. Equal jobs are calls of one program.
struct KernelJob {
  DType type = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  Scale scale{};
  uint64_t count = 0;
  bool operator==(const KernelJob&) const = default;
};

struct PlacedProgram {
  KernelJob job;
  KernelImage image;
  uint64_t workspace = 0;  ///< bytes from the beginning of the memory, on every rank
  uint64_t uploaded = 0;   ///< the same, of the image
  uint64_t calls = 0;      ///< so far; the caller counts
};

/// The same on all ranks of the GPU group.
struct KernelRules {
  uint32_t ranks = 1;
  uint32_t blocks = 1;    ///< of a rank, at most
  uint64_t bytes = 0;     ///< of every rank's memory for programs; at least 4 MiB
  std::string algorithm;  ///< of schedule/, for every allreduce; empty: the size decides
};

class KernelPrograms {
 public:
  static constexpr uint64_t kMostOneShot = uint64_t{16} << 10;
  static constexpr uint64_t kMostTwoShot = uint64_t{256} << 10;

  explicit KernelPrograms(KernelRules rules) : rules_(std::move(rules)) {}

  /// Null: there is no room before Clear. A program's first call needs its workspace zeroed, and
  /// its image uploaded.
  [[nodiscard]] Result<PlacedProgram*> Find(const KernelJob& job);
  /// An error if the rules' algorithm has no program.
  [[nodiscard]] Status Check() const;
  /// Forgets all programs, so that others use their memory.
  void Clear();

 private:
  [[nodiscard]] Result<KernelImage> Compile(const KernelJob& job) const;
  [[nodiscard]] Result<KernelImage> CompileForced(const KernelRequest& request) const;

  const KernelRules rules_;
  std::list<PlacedProgram> placed_;
  uint64_t end_ = 0;
};

}  // namespace horoacc::cuda
