// Inputs that travel with the news, and hosts' sums of them: the bits of one pass over all ranks'
// inputs, for every type, operation and factor, on hosts whose sums may travel and on others.
#include "negotiate/multi_host/eager.h"

#include <string>
#include <utility>

#include "execute/kernels/reduce.h"
#include "execute/reduce_values.h"
#include "support/check.h"

namespace horoacc {
namespace {

constexpr size_t kCount = 1100;  // more than a block of Combiner
constexpr std::pair<double, double> kFactors[] = {{1.0, 1.0}, {0.3, 1.0}, {1.0, 0.7}, {1.5, 2.5}};

struct Hosts {
  std::vector<uint32_t> ranks;
  bool sums = false;
};

// With `auto`, 16-bit floats are not eager.
const Settings kCanonical = [] {
  Settings settings;
  settings.reduction = "canonical";
  return settings;
}();

// A group: the elements, a tensor without any, and the first of them again.
Request RequestOf(DType type, ReduceOp op, double prescale, double postscale) {
  Request request;
  request.op = op;
  request.prescale = prescale;
  request.postscale = postscale;
  request.tensors = {{type, {static_cast<int64_t>(kCount)}}, {type, {0}}, {type, {1}}};
  return request;
}

void Check(const Hosts& hosts, const Request& request, const Sources& sources, size_t ranks) {
  const DType type = request.tensors[0].type;
  const EagerRule rule(hosts.ranks, hosts.sums, kCanonical);
  CHECK(rule.BytesOf(request) > 0);
  const auto shared = std::make_shared<const Request>(request);
  std::vector<const void*> all;
  ReadySet ready_set;
  // The last host first: the order in which news comes is nobody's.
  std::vector<ReadySet> news;
  uint32_t member = 0;
  for (const uint32_t here : hosts.ranks) {
    ReadySet& host = news.emplace_back();
    std::vector<std::vector<const std::byte*>> inputs;
    for (uint32_t k = 0; k < here; ++k, ++member) {
      const auto* const at = static_cast<const std::byte*>(sources.pointers()[member]);
      all.push_back(at);
      inputs.push_back({at, nullptr, at});
      CHECK(host.Add(shared, {&member, 1}));
      if (!hosts.sums) host.AddInput(rule.Sum(request, member, {&inputs.back(), 1}));
    }
    if (hosts.sums) host.AddInput(rule.Sum(request, member - here, inputs));
    for (const ReadySet::Input& input : host.inputs())
      CHECK(input.bytes->size() <= rule.BytesOf(request));
  }
  for (size_t k = news.size(); k > 0; --k) {
    CHECK(ReduceEager(news[k - 1], ranks).empty());
    CHECK(ready_set.Add(news[k - 1]));
  }
  const std::vector<std::byte> packed = ReduceEager(ready_set, ranks);
  CHECK(!packed.empty());
  std::vector<std::byte> first(kCount * SizeOf(type));
  std::vector<std::byte> last(SizeOf(type));
  std::byte* const outputs[] = {first.data(), nullptr, last.data()};
  UnpackTensors(request, packed, outputs);
  const double divisor = request.op == ReduceOp::kAverage ? static_cast<double>(ranks) : 1.0;
  const Scale scale{request.prescale, request.postscale, divisor};
  const std::vector<char> expected = oracle::Reduce(all, kCount, type, request.op, scale);
  const size_t wrong = oracle::FirstDifference(first.data(), expected.data(), kCount, type);
  if (wrong < kCount || oracle::FirstDifference(last.data(), expected.data(), 1, type) == 0) {
    check::Fail(__FILE__, __LINE__,
                std::string(NameOf(request.op)) + " of " + std::string(NameOf(type)) + ", " +
                    std::to_string(hosts.ranks.size()) + " hosts: element " +
                    std::to_string(wrong) + " is wrong");
  }
}

TEST(sums_of_hosts_give_the_bits_of_one_host) {
  const Hosts shapes[] = {{{2, 2}, true},  {{4, 4}, true},  {{2, 2, 2}, true},    {{2, 1}, false},
                          {{3, 3}, false}, {{1, 1}, false}, {{1, 1, 1, 1}, false}};
  for (const Hosts& hosts : shapes) {
    size_t ranks = 0;
    for (const uint32_t here : hosts.ranks) ranks += here;
    for (int number = 0; number <= static_cast<int>(DType::kComplex128); ++number) {
      const auto type = static_cast<DType>(number);
      const Sources sources(type, ranks, kCount);
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax,
                                ReduceOp::kProduct}) {
        if (!CheckReducible(type, op).ok()) continue;
        for (const auto& [pre, post] : kFactors)
          Check(hosts, RequestOf(type, op, pre, post), sources, ranks);
      }
    }
  }
}

TEST(what_a_host_may_send) {
  const auto floats = [](DType type, int64_t count) {
    Request request;
    request.tensors = {{type, {count}}};
    return request;
  };
  const std::vector<uint32_t> two{2, 2}, unequal{2, 1}, eight(8, 1);
  const EagerRule sums(two, true, kCanonical), inputs(unequal, false, kCanonical),
      many(eight, false, kCanonical);
  const auto length = static_cast<int64_t>(kMostEagerBytes / sizeof(float));
  CHECK_EQ(sums.BytesOf(floats(DType::kFloat32, length)), kMostEagerBytes);
  CHECK_EQ(sums.BytesOf(floats(DType::kFloat32, length + 1)), 0);
  CHECK_EQ(sums.BytesOf(floats(DType::kFloat16, length)), kMostEagerBytes);  // as float32
  CHECK_EQ(sums.BytesOf(floats(DType::kFloat16, length + 1)), 0);
  CHECK_EQ(inputs.BytesOf(floats(DType::kFloat32, length / 2)), kMostEagerBytes / 2);
  CHECK_EQ(inputs.BytesOf(floats(DType::kFloat32, length / 2 + 1)), 0);
  CHECK_EQ(many.BytesOf(floats(DType::kFloat32, length / 2)), kMostEagerBytes / 2);
  CHECK_EQ(many.BytesOf(floats(DType::kFloat32, length / 2 + 1)), 0);
  CHECK_EQ(EagerRule(two, true, {}).BytesOf(floats(DType::kFloat16, 1)), 0);
}

}  // namespace
}  // namespace horoacc
