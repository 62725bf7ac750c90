// The plan of a job, before any kernel: whether it is defined, and how its factors are applied.
#include "execute/kernels/reduce_plan.h"

#include <string>

namespace horoacc {
namespace {

Error Meaningless(DType type, ReduceOp op, const char* reason) {
  return MakeError(
      ErrorKind::kUnsupported,
      std::string(NameOf(op)) + " of " + std::string(NameOf(type)) + " is not defined: " + reason);
}

}  // namespace

Status CheckReducible(DType type, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kProduct:
      return {};
    case ReduceOp::kAverage:
      if (type != DType::kBool) return {};
      return Meaningless(type, op, "use sum or max for \"any\", min or product for \"all\"");
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      if (!IsComplex(type)) return {};
      return Meaningless(type, op, "complex numbers have no order");
    case ReduceOp::kBitAnd:
    case ReduceOp::kBitOr:
    case ReduceOp::kBitXor:
      if (type <= DType::kInt64) return {};
      return Meaningless(type, op, "only integers and truth values have bits");
    case ReduceOp::kAdasum:
      if (IsFloat(type)) return {};
      return Meaningless(type, op, "it divides, and needs real floating-point numbers");
  }
  return MakeError(ErrorKind::kUnsupported,
                   "unknown reduction operation " + std::to_string(static_cast<int>(op)));
}

KernelJob PlanKernel(const ReduceJob& job) {
  return {.sources = job.sources.data(),
          .source_count = job.sources.size(),
          .destinations = job.destinations.data(),
          .destination_count = job.destinations.size(),
          .count = job.count,
          .type = job.type,
          .op = job.op,
          .prescales = job.scale.pre != 1.0,
          .postscales = job.scale.post != 1.0 || job.scale.divisor != 1.0,
          .pre = job.scale.pre,
          .post = job.scale.post,
          .divisor = job.scale.divisor,
          .factor = job.scale.post / job.scale.divisor,
          .whole_bytes = job.whole_bytes};
}

}  // namespace horoacc
