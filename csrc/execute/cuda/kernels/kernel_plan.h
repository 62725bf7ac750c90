#pragma once
// Plans a reduction or a batch of copies for the kernels: refuses it, or computes all arguments
// that do not depend on the GPU.
#include <span>
#include <vector>

#include "base/result.h"
#include "execute/cuda/cuda_plugin.h"
#include "execute/cuda/kernels/adasum_grid.h"
#include "execute/cuda/kernels/pack_grid.h"
#include "execute/cuda/kernels/reduce_grid.h"
#include "execute/kernels/reduce.h"

namespace horoacc::cuda {

struct ReducePlan {
  DType type = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  bool scaled = false;
  ReduceArgs args{};
};

/// The job's memory is the GPU's. At most kMostSources sources and as many destinations; operations
/// from sum to product, of complex numbers only the last: their sums are those of their parts.
[[nodiscard]] Result<ReducePlan> PlanReduce(const ReduceJob& job);

struct AdasumPlan {
  DType type = DType::kFloat32;
  AdasumArgs args{};
};

[[nodiscard]] Result<AdasumPlan> PlanAdasum(const ha_cuda_adasum& job);

struct Tensor {
  const void* from = nullptr;
  void* to = nullptr;
  size_t count = 0;
};

struct PackJob {
  std::span<const Tensor> tensors;
  DType from = DType::kFloat32;
  DType to = DType::kFloat32;
  double factor = 1;
  unsigned long long* nonfinite = nullptr;  ///< the GPU's; increased by what is written
};

struct PackPlan {
  DType from = DType::kFloat32;
  DType to = DType::kFloat32;
  bool as_bytes = false;
  std::vector<PackItem> items;
  PackArgs args{};  ///< without args.items: the launcher puts them where the GPU reads them
};

/// Any type can be copied; floats can be scaled and counted, and float32 be cast to and from
/// 16 bits.
[[nodiscard]] Result<PackPlan> PlanPack(const PackJob& job);

}  // namespace horoacc::cuda
