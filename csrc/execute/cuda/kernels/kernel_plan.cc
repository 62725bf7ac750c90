#include "execute/cuda/kernels/kernel_plan.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>

#include "execute/kernels/reduce_plan.h"

namespace horoacc::cuda {
namespace {

Factors FactorsOf(const KernelJob& kernel) {
  Factors factors{.prescales = kernel.prescales,
                  .postscales = kernel.postscales,
                  .pre = kernel.pre,
                  .post = kernel.post,
                  .divisor = kernel.divisor,
                  .factor = kernel.factor};
  const int64_t whole = Truncate(kernel.divisor);
  const bool divides = kernel.post == 1.0 && static_cast<double>(whole) == kernel.divisor;
  if (divides && whole >= 1 && kernel.divisor < 0x1p53) factors.whole = whole;
  return factors;
}

Error Refused(std::string why) {
  return MakeError(ErrorKind::kUnsupported, "the CUDA kernels: " + std::move(why));
}

bool IsSixteenBit(DType type) { return type == DType::kFloat16 || type == DType::kBFloat16; }

Status CheckPack(const PackJob& job) {
  const bool casts = job.from != job.to;
  const bool known = (job.from == DType::kFloat32 && IsSixteenBit(job.to)) ||
                     (IsSixteenBit(job.from) && job.to == DType::kFloat32);
  if (casts && !known) {
    return Refused("no cast from " + std::string(NameOf(job.from)) + " to " +
                   std::string(NameOf(job.to)));
  }
  if (!IsFloat(job.from) && (job.factor != 1.0 || job.nonfinite != nullptr)) {
    return Refused("copies of " + std::string(NameOf(job.from)) + " are not scaled or counted");
  }
  if (job.tensors.size() > std::numeric_limits<uint32_t>::max()) return Refused("too many tensors");
  return {};
}

}  // namespace

Result<ReducePlan> PlanReduce(const ReduceJob& job) {
  HA_TRY(CheckReducible(job.type, job.op));
  const bool adds = job.op <= ReduceOp::kProduct && job.op != ReduceOp::kAdasum;
  if (!adds || (IsComplex(job.type) && job.op != ReduceOp::kProduct)) {
    return Refused("no " + std::string(NameOf(job.op)) + " of " + std::string(NameOf(job.type)));
  }
  const size_t most = std::max(job.sources.size(), job.destinations.size());
  if (job.sources.empty() || job.destinations.empty() || most > kMostSources) {
    return Refused("between 1 and " + std::to_string(kMostSources) +
                   " sources and destinations, not " + std::to_string(job.sources.size()) +
                   " and " + std::to_string(job.destinations.size()));
  }
  const KernelJob kernel = PlanKernel(job);
  ReducePlan plan;
  plan.type = job.type;
  plan.op = job.op;
  plan.scaled = kernel.prescales || kernel.postscales;
  Operands& operands = plan.args.operands;
  for (const void* source : job.sources)
    operands.source[operands.sources++] = static_cast<const char*>(source);
  for (void* destination : job.destinations)
    operands.destination[operands.destinations++] = static_cast<char*>(destination);
  operands.raw = ~uint64_t{0};
  operands.count = job.count;
  plan.args.factors = FactorsOf(kernel);
  // A scaled truth value is the number 0 or 1, and its factor is truncated.
  if (job.type == DType::kBool) plan.args.factors.pre = Truncate(job.scale.pre) != 0 ? 1.0 : 0.0;
  return plan;
}

Result<AdasumPlan> PlanAdasum(const ha_cuda_adasum& job) {
  const auto type = static_cast<DType>(job.type);
  if (!IsFloat(type)) return Refused("no adasum of this type");
  const bool cut = job.begun % kProductLanes == 0 && job.begun < kAdasumChunk && job.step > 0 &&
                   (job.sums != nullptr || job.factors != nullptr);
  if (job.source_count == 0 || job.source_count > kMostSources || !cut) {
    return Refused("adasum takes 1 to " + std::to_string(kMostSources) +
                   " sources, cut at multiples of 8 elements, and sums or factors");
  }
  AdasumPlan plan;
  plan.type = type;
  AdasumArgs& args = plan.args;
  args.sources = static_cast<uint32_t>(job.source_count);
  args.sums = job.factors == nullptr ? job.sums : nullptr;
  args.count = job.count;
  args.begun = job.begun;
  args.first = job.first;
  args.step = job.step;
  for (size_t s = 0; s < job.source_count; ++s) {
    args.source[s] = static_cast<const char*>(job.sources[s]);
    if (job.factors == nullptr) continue;
    args.destination[s] = static_cast<char*>(job.destinations[s]);
    args.factor[s] = job.factors[s];
  }
  return plan;
}

Result<PackPlan> PlanPack(const PackJob& job) {
  HA_TRY(CheckPack(job));
  PackPlan plan;
  plan.from = job.from;
  plan.to = job.to;
  plan.as_bytes = job.from == job.to && job.factor == 1.0 && job.nonfinite == nullptr;
  const size_t unit = plan.as_bytes ? SizeOf(job.from) : 1;
  const size_t wider = std::max(SizeOf(job.from), SizeOf(job.to));
  const size_t grain = kTileGrain / (plan.as_bytes ? 1 : wider);  // a power of two
  const int shift = std::countr_zero(grain);
  constexpr size_t kMost = kTileBytes / kTileGrain;  // grains of a tile
  uint64_t tiles = 0;
  plan.items.reserve(job.tensors.size());
  for (const Tensor& tensor : job.tensors) {
    if (tensor.count == 0) continue;
    const size_t count = tensor.count * unit;
    const size_t grains = (count + grain - 1) >> shift;
    size_t each = grains;
    size_t parts = 1;
    if (grains > kMost) {  // most tensors need none of these divisions
      const size_t wanted = (grains + kMost - 1) / kMost;
      each = (grains + wanted - 1) / wanted;
      parts = (grains + each - 1) / each;
    }
    plan.items.push_back({static_cast<const char*>(tensor.from), static_cast<char*>(tensor.to),
                          count, static_cast<uint32_t>(tiles),
                          static_cast<uint32_t>(each << shift)});
    tiles += parts;
  }
  if (tiles > std::numeric_limits<uint32_t>::max()) return Refused("too much to pack at once");
  plan.args.tiles = static_cast<uint32_t>(tiles);
  plan.args.item_count = static_cast<uint32_t>(plan.items.size());
  plan.args.nonfinite = job.nonfinite;
  plan.args.factors =
      FactorsOf(PlanKernel({{}, {}, 0, job.from, ReduceOp::kSum, {.pre = job.factor}}));
  return plan;
}

}  // namespace horoacc::cuda
