// The plan of a job, before any kernel: whether it is defined, and how its factors are applied.
#include "execute/kernels/reduce_plan.h"

#include <cmath>
#include <string>

namespace horoacc {
namespace {

bool IsPowerOfTwo(double x) {
  int exponent = 0;
  return x > 0 && std::frexp(x, &exponent) == 0.5;
}

/// A normal float32 that equals x.
bool FitsFloat(double x) {
  const auto narrow = static_cast<float>(x);
  return std::isnormal(narrow) && static_cast<double>(narrow) == x;
}

bool AccumulatesInFloat(DType type) {
  return type == DType::kFloat16 || type == DType::kBFloat16 || type == DType::kFloat32 ||
         type == DType::kComplex64;
}

bool AccumulatesInDouble(DType type) {
  return type == DType::kFloat64 || type == DType::kComplex128;
}

// The product of two float32 is exact in float64, and rounding it is what a float32
// multiplication does.
ScaleStep PreStep(DType type, double pre) {
  if (pre == 1.0) return ScaleStep::kNone;
  if (AccumulatesInDouble(type)) return ScaleStep::kMultiply;
  return AccumulatesInFloat(type) && FitsFloat(pre) ? ScaleStep::kMultiply : ScaleStep::kInDouble;
}

// Dividing by a power of two only moves the exponent, so it joins the multiplication. A quotient
// of two float32 may be rounded to float64 first without changing its float32 value, because
// 53 >= 2 * 24 + 2 (S. Figueroa, "When is double rounding innocuous?", 1995).
ScaleStep PostStep(DType type, const Scale& scale) {
  if (scale.post == 1.0 && scale.divisor == 1.0) return ScaleStep::kNone;
  const bool in_float = AccumulatesInFloat(type);
  if (!in_float && !AccumulatesInDouble(type)) return ScaleStep::kInDouble;
  const double factor = scale.post / scale.divisor;
  if (in_float) {
    if (IsPowerOfTwo(scale.divisor) && FitsFloat(scale.post) && FitsFloat(factor)) {
      return ScaleStep::kMultiply;
    }
    return scale.post == 1.0 && FitsFloat(scale.divisor) ? ScaleStep::kDivide
                                                         : ScaleStep::kInDouble;
  }
  if (scale.divisor == 1.0) return ScaleStep::kMultiply;
  if (scale.post != 1.0) return ScaleStep::kInDouble;
  return IsPowerOfTwo(scale.divisor) && std::isnormal(factor) ? ScaleStep::kMultiply
                                                              : ScaleStep::kDivide;
}

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
          .pre_step = PreStep(job.type, job.scale.pre),
          .post_step = PostStep(job.type, job.scale),
          .pre = job.scale.pre,
          .post = job.scale.post,
          .divisor = job.scale.divisor,
          .factor = job.scale.post / job.scale.divisor,
          .whole_bytes = job.whole_bytes};
}

}  // namespace horoacc
