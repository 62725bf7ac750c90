// Do two ranks ask for the same thing? And if not, does the message tell what differs?
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "negotiate/disagreement.h"
#include "support/check.h"

namespace horoacc {
namespace {

Request Basic(Collective collective = Collective::kAllreduce) {
  Request request;
  request.collective = collective;
  request.tensors = {{DType::kFloat32, {4, 3}}};
  return request;
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void CheckDiffer(const Request& a, const Request& b, const std::string& what,
                 const std::string& left, const std::string& right) {
  CHECK(a.Signature() != b.Signature());
  const std::string text = DescribeMismatch("layer.weight", 3, a, 17, b);
  CHECK_EQ(text, "tensor 'layer.weight': mismatched " + what + ": rank 3 has " + left +
                     ", rank 17 has " + right);
  CHECK_EQ(DescribeMismatch("layer.weight", 17, b, 3, a), "tensor 'layer.weight': mismatched " +
                                                              what + ": rank 17 has " + right +
                                                              ", rank 3 has " + left);
}

void CheckFit(const Request& a, const Request& b) {
  CHECK_EQ(a.Signature(), b.Signature());
  CHECK_EQ(DescribeMismatch("t", 0, a, 1, b), "");
}

TEST(every_kind_of_mismatch_is_told_with_both_values) {
  const Request base = Basic();
  Request other = Basic(Collective::kReducescatter);
  CheckDiffer(base, other, "operation", "allreduce", "reducescatter");
  other = Basic();
  other.tensors.push_back({DType::kInt8, {1}});
  CheckDiffer(base, other, "number of grouped tensors", "1", "2");
  other = Basic();
  other.tensors[0].type = DType::kBFloat16;
  CheckDiffer(base, other, "data type", "float32", "bfloat16");
  other = Basic();
  other.tensors[0].shape = {4, 2};
  CheckDiffer(base, other, "shape", "[4, 3]", "[4, 2]");
  other.tensors[0].shape = {12};
  CheckDiffer(base, other, "shape", "[4, 3]", "[12]");
  other.tensors[0].shape = {};
  CheckDiffer(base, other, "shape", "[4, 3]", "[]");
  other = Basic();
  other.op = ReduceOp::kAverage;
  CheckDiffer(base, other, "reduction", "sum", "average");
  for (const Collective collective : {Collective::kAllgather, Collective::kAlltoall}) {
    Request gathered = Basic(collective);
    other = gathered;
    other.tensors[0].shape = {4, 5};
    CheckDiffer(gathered, other, "shape beyond the first dimension", "[4, 3]", "[4, 5]");
  }
  Request broadcast = Basic(Collective::kBroadcast);
  other = broadcast;
  other.root = 2;
  CheckDiffer(broadcast, other, "root rank", "0", "2");
  Request barrier;
  barrier.collective = Collective::kBarrier;
  other = barrier;
  other.collective = Collective::kMonitoredBarrier;
  CheckDiffer(barrier, other, "operation", "barrier", "monitored_barrier");
}

TEST(members_of_a_group_are_told_apart) {
  Request group = Basic();
  group.tensors = {{DType::kFloat32, {1}}, {DType::kFloat32, {2}}, {DType::kFloat32, {3}}};
  Request other = group;
  other.tensors[2].type = DType::kInt64;
  CheckDiffer(group, other, "data type of member 2", "float32", "int64");
  other = group;
  other.tensors[1].shape = {2, 1};
  CheckDiffer(group, other, "shape of member 1", "[2]", "[2, 1]");
}

// Factors such as 1/N and loss scales are small, and close to each other.
TEST(factors_are_told_with_all_their_digits) {
  const std::vector<std::pair<double, double>> kFactors = {
      {1.0, 0.5}, {1e-9, 2e-9}, {1.0 / 3, 0.333333}, {1e300, 2e300}, {1.0, std::nextafter(1.0, 2)}};
  for (const auto& [left, right] : kFactors) {
    for (double Request::* const factor : {&Request::prescale, &Request::postscale}) {
      Request a = Basic();
      Request b = Basic();
      a.*factor = left;
      b.*factor = right;
      CHECK(a.Signature() != b.Signature());
      const std::string text = DescribeMismatch("t", 0, a, 1, b);
      CHECK(Contains(text, factor == &Request::prescale ? "prescale factor" : "postscale factor"));
      // Both values can be read back from the text.
      const size_t first = text.find("rank 0 has ");
      const size_t second = text.find("rank 1 has ");
      CHECK(first != std::string::npos && second != std::string::npos);
      CHECK_EQ(std::strtod(text.c_str() + first + 11, nullptr), left);
      CHECK_EQ(std::strtod(text.c_str() + second + 11, nullptr), right);
    }
  }
}

TEST(fields_that_a_collective_does_not_use_do_not_matter) {
  Request a = Basic(Collective::kAllgather);
  Request b = a;
  b.op = ReduceOp::kMax;
  b.prescale = 3;
  b.postscale = 4;
  b.root = 5;
  b.tensors[0].shape[0] = 99;
  CheckFit(a, b);
  a = Basic();
  b = a;
  b.root = 5;
  b.splits = {1, 2};
  CheckFit(a, b);
  a = Basic(Collective::kAlltoall);
  b = a;
  b.splits = {1, 3};
  b.tensors[0].shape[0] = 7;
  CheckFit(a, b);
  a = Basic(Collective::kBroadcast);
  b = a;
  b.op = ReduceOp::kMin;
  b.prescale = 2;
  CheckFit(a, b);
  a = Basic(Collective::kBarrier);
  a.tensors.clear();
  b = a;
  b.root = 1;
  CheckFit(a, b);
}

TEST(counts_and_shapes) {
  CHECK_EQ((TensorMeta{DType::kFloat64, {2, 3, 4}}.bytes()), 192);
  CHECK_EQ((TensorMeta{DType::kComplex128, {}}.bytes()), 16);
  CHECK_EQ((TensorMeta{DType::kInt8, {5, 0, 2}}.bytes()), 0);
  CHECK_EQ(ShapeText({}), "[]");
  CHECK_EQ(ShapeText({7}), "[7]");
  CHECK_EQ(ShapeText({7, 0, -1}), "[7, 0, -1]");
}

Request RandomRequest(std::mt19937& random) {
  const auto draw = [&](int most) { return static_cast<int>(random() % (most + 1)); };
  // Few values of everything, so that many pairs fit.
  constexpr double kFactors[] = {1.0,
                                 0.5,
                                 0.0,
                                 -0.0,
                                 std::numeric_limits<double>::infinity(),
                                 std::numeric_limits<double>::quiet_NaN()};
  Request request;
  request.collective = static_cast<Collective>(draw(kCollectiveCount - 1));
  request.op = draw(1) ? ReduceOp::kSum : ReduceOp::kAverage;
  request.prescale = draw(3) ? 1.0 : kFactors[draw(5)];
  request.postscale = draw(3) ? 1.0 : kFactors[draw(5)];
  request.root = draw(1);
  request.on_gpu = draw(7) == 0;
  if (draw(7) == 0) request.way = {static_cast<uint32_t>(draw(1)), 4096};
  request.tensors.resize(1 + (draw(3) == 0));
  for (TensorMeta& tensor : request.tensors) {
    tensor.type = draw(3) ? DType::kFloat32 : DType::kInt32;
    std::vector<int64_t> shape(draw(2));
    for (int64_t& dim : shape) dim = draw(2);
    tensor.shape.assign(shape.data(), shape.data() + shape.size());
  }
  if (draw(1)) request.splits = {draw(3), draw(3)};
  return request;
}

TEST(signatures_are_equal_exactly_if_requests_fit) {
  std::mt19937 random(11);
  int fits = 0;
  for (int k = 0; k < 100'000; ++k) {
    const Request a = RandomRequest(random);
    Request b = RandomRequest(random);
    if (k % 2) b.collective = a.collective;
    if (k % 4 == 1) b.tensors = a.tensors;
    const std::string text = DescribeMismatch("t", 0, a, 1, b);
    const bool fit = a.Signature() == b.Signature();
    if (fit != text.empty()) {
      check::Fail(__FILE__, __LINE__,
                  std::string("the signatures are ") + (fit ? "equal" : "different") +
                      ", but the description is '" + text + "'");
    }
    CHECK_EQ(text.empty(), DescribeMismatch("t", 1, b, 0, a).empty());
    fits += fit;
  }
  CHECK(fits > 1000);
}

}  // namespace
}  // namespace horoacc
