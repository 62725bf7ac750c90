// The reduction kernels against an oracle, bit for bit, on every instruction set of this CPU.
#include "execute/kernels/reduce.h"

#include "execute/kernels/half.h"
#include "execute/kernels/reduce_plan.h"
#include "execute/reduce_oracle.h"
#include "execute/reduce_values.h"
#include "support/check.h"

using namespace horoacc;

namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kProduct};
constexpr size_t kCounts[] = {0, 1, 3, 31, 64, 1000, 4097};
constexpr size_t kMostElements = 4097;
constexpr size_t kGuard = 64;
constexpr char kUntouched = 'Z';

DType TypeOf(int index) { return static_cast<DType>(index); }

enum class Placement { kInPlace, kApart, kMixed };

/// Copies of the sources and the destinations of one job, with untouched bytes after each.
class Workspace {
 public:
  Workspace(const Sources& from, size_t bytes, Placement placement, bool aligned) {
    const size_t ranks = from.pointers().size();
    const size_t fresh = placement == Placement::kApart ? 2 : placement == Placement::kMixed;
    const size_t stride = (bytes + 2 * kGuard + 63) / 64 * 64;
    memory_.assign((ranks + fresh + 1) * stride, kUntouched);
    char* base = memory_.data();
    base += -reinterpret_cast<uintptr_t>(base) & 63U;
    for (size_t b = 0; b < ranks + fresh; ++b) {
      char* at = base + b * stride + (aligned ? 0 : 1 + b % 7);
      ends_.push_back(at + bytes);
      if (b < ranks) {
        if (bytes > 0) std::memcpy(at, from.pointers()[b], bytes);
        sources.push_back(at);
        if (placement == Placement::kInPlace) destinations.push_back(at);
        if (placement == Placement::kMixed && b + 1 == ranks) destinations.push_back(at);
      } else {
        destinations.push_back(at);
      }
    }
  }

  void CheckGuards() const {
    static constexpr char kPattern[] = "ZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZ";
    for (const char* end : ends_) CHECK(std::memcmp(end, kPattern, sizeof(kPattern) - 1) == 0);
  }

  std::vector<const void*> sources;
  std::vector<void*> destinations;

 private:
  std::vector<char> memory_;
  std::vector<const char*> ends_;
};

void CheckDestinations(const Workspace& work, const std::vector<char>& expected,
                       const ReduceJob& job, const char* set) {
  for (const void* destination : work.destinations) {
    const size_t wrong = oracle::FirstDifference(destination, expected.data(), job.count, job.type);
    if (wrong == job.count) continue;
    std::fprintf(stderr, "%s %s of %zu, %zu elements, scale %g %g %g, %s: element %zu differs\n",
                 NameOf(job.type).data(), NameOf(job.op).data(), job.sources.size(), job.count,
                 job.scale.pre, job.scale.post, job.scale.divisor, set, wrong);
    CHECK_EQ(wrong, job.count);
  }
  work.CheckGuards();
}

void CheckAll(const Sources& sources, DType type, ReduceOp op, const Scale& scale,
              std::span<const size_t> counts, size_t whole_bytes = 0) {
  const std::vector<char> expected =
      oracle::Reduce(sources.pointers(), counts.back(), type, op, scale);
  for (const KernelSet& set : KernelSetsHere()) {
    for (const size_t count : counts) {
      for (const bool aligned : {true, false}) {
        for (const Placement placement :
             {Placement::kInPlace, Placement::kApart, Placement::kMixed}) {
          const Workspace work(sources, count * SizeOf(type), placement, aligned);
          const ReduceJob job{work.sources, work.destinations, count, type, op, scale, whole_bytes};
          set.reduce(PlanKernel(job));
          CheckDestinations(work, expected, job, set.name);
        }
      }
    }
  }
}

void CheckRanks(size_t ranks) {
  for (int t = 0; t < kDTypeCount; ++t) {
    const Sources sources(TypeOf(t), ranks, kMostElements);
    for (const ReduceOp op : kOps) {
      if (!CheckReducible(TypeOf(t), op).ok()) continue;
      const double divisor = op == ReduceOp::kAverage ? static_cast<double>(ranks) : 1.0;
      for (const Scale scale :
           {Scale{1, 1, divisor}, Scale{0.5, 1, divisor}, Scale{1, 2.5, divisor},
            Scale{1.0 / 3, 1, divisor}, Scale{1, 0.1, divisor}, Scale{0.3, 0.7, divisor},
            Scale{2, 0.25, divisor}, Scale{1, 1e300, divisor}}) {
        CheckAll(sources, TypeOf(t), op, scale, kCounts);
      }
    }
  }
}

template <typename T>
std::vector<T> ReduceValues(DType type, ReduceOp op, const std::vector<T>& in, Scale scale = {}) {
  std::vector<const void*> sources;
  for (const T& value : in) sources.push_back(&value);
  std::vector<T> out(2);
  const std::vector<void*> destinations{&out[0], &out[1]};
  Reduce({sources, destinations, 1, type, op, scale});
  return out;
}

}  // namespace

TEST(EveryTypeOperationScaleAndPlacementOf1) { CheckRanks(1); }
TEST(EveryTypeOperationScaleAndPlacementOf2) { CheckRanks(2); }
TEST(EveryTypeOperationScaleAndPlacementOf3) { CheckRanks(3); }
TEST(EveryTypeOperationScaleAndPlacementOf4) { CheckRanks(4); }
TEST(EveryTypeOperationScaleAndPlacementOf5) { CheckRanks(5); }
TEST(EveryTypeOperationScaleAndPlacementOf8) { CheckRanks(8); }
TEST(EveryTypeOperationScaleAndPlacementOf16) { CheckRanks(16); }
TEST(EveryTypeOperationScaleAndPlacementOf17) { CheckRanks(17); }

TEST(ManyRanks) {
  constexpr size_t kCount[] = {600};
  for (const size_t ranks : {6, 7, 33, 100, 255, 1000, 1024}) {
    const auto divisor = static_cast<double>(ranks);
    for (const DType type : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt8}) {
      const Sources sources(type, ranks, kCount[0]);
      CheckAll(sources, type, ReduceOp::kSum, {}, kCount);
      CheckAll(sources, type, ReduceOp::kAverage, {0.75, 1, divisor}, kCount);
    }
  }
}

// Large jobs that are not in place bypass the cache.
TEST(LargeJobsApart) {
  for (const DType type : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    const size_t count[] = {(size_t{4} << 20) / SizeOf(type) + 77};
    CheckAll(Sources(type, 2, count[0]), type, ReduceOp::kSum, {1, 0.5, 1}, count);
  }
}

// And so do their slices.
TEST(PartsOfLargeJobsApart) {
  for (const DType type : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    for (const size_t ranks : {2, 3, 4, 5, 8})
      CheckAll(Sources(type, ranks, kMostElements), type, ReduceOp::kSum, {1, 0.5, 1}, kCounts,
               size_t{8} << 20);
  }
}

TEST(TreeOfSixIsTwoPairsAndAPair) {
  // ((0+1)+(2+3))+(4+5) is 3 here; from left to right it is 1, and as two threes 2 or 4.
  const float big = 16777216.0F;  // adding 1 to it changes nothing
  const auto out = ReduceValues<float>(DType::kFloat32, ReduceOp::kSum, {big, 1, 1, 1, -big, 1});
  CHECK_EQ(out[0], 3.0F);
  CHECK_EQ(out[1], 3.0F);
}

TEST(SmallIntegersDoNotWrapBeforeTheDivision) {
  const std::vector<int8_t> ends{127, 127, 127, -1};
  CHECK_EQ(ReduceValues(DType::kInt8, ReduceOp::kAverage, ends, {1, 1, 4})[1], 95);
  CHECK_EQ(ReduceValues(DType::kInt8, ReduceOp::kSum, ends)[0], static_cast<int8_t>(380));
  const std::vector<int32_t> least{-5, -2};
  CHECK_EQ(ReduceValues(DType::kInt32, ReduceOp::kAverage, least, {1, 1, 2})[0], -3);
  CHECK_EQ(ReduceValues(DType::kInt32, ReduceOp::kSum, least, {0.5, 1, 1})[0], -3);
  const int64_t odd = (int64_t{1} << 53) + 1;
  const std::vector<int64_t> same{odd, odd, odd};
  CHECK_EQ(ReduceValues(DType::kInt64, ReduceOp::kAverage, same, {1, 1, 3})[0], odd);
}

TEST(NaNWinsAndTiesStayWithTheLowerRank) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    CHECK(std::isnan(ReduceValues<float>(DType::kFloat32, op, {1, nan})[0]));
    CHECK(std::isnan(ReduceValues<float>(DType::kFloat32, op, {nan, 1, 2})[0]));
    CHECK(std::signbit(ReduceValues<float>(DType::kFloat32, op, {-0.0F, 0.0F})[0]));
    CHECK(!std::signbit(ReduceValues<float>(DType::kFloat32, op, {0.0F, -0.0F})[0]));
  }
  const std::vector<uint16_t> loud{0x7f81, 0x3f80};  // a signalling NaN, and 1
  const uint16_t sum = ReduceValues(DType::kBFloat16, ReduceOp::kSum, loud)[0];
  CHECK(std::isnan(BFloat16ToFloat(sum)));
}

TEST(HalfConversionsAgreeWithTheDefinition) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto code = static_cast<uint16_t>(bits);
    const oracle::Half half{code};
    const oracle::BHalf brain{code};
    CHECK(oracle::SameValue(HalfToFloat(code), static_cast<float>(half)));
    CHECK(oracle::SameValue(BFloat16ToFloat(code), static_cast<float>(brain)));
    CHECK(oracle::SameValue(oracle::Half{FloatToHalf(HalfToFloat(code))}, half));
    CHECK(oracle::SameValue(oracle::BHalf{FloatToBFloat16(BFloat16ToFloat(code))}, brain));
    // The bounds between neighbours, where rounding turns: exactly half way, and on both sides.
    const uint16_t next = static_cast<uint16_t>(bits + 1);
    for (const float middle : {HalfToFloat(code) / 2 + HalfToFloat(next) / 2,
                               BFloat16ToFloat(code) / 2 + BFloat16ToFloat(next) / 2, 65520.0F}) {
      for (const float towards : {-INFINITY, middle, INFINITY}) {
        const float x = std::nextafterf(middle, towards);
        CHECK(oracle::SameValue(oracle::Half{FloatToHalf(x)}, oracle::Half::Round(x)));
        CHECK(oracle::SameValue(oracle::BHalf{FloatToBFloat16(x)}, oracle::BHalf::Round(x)));
      }
    }
  }
}

// All finite float16 and the infinities pass through every kernel unchanged, NaNs stay NaNs.
TEST(EveryHalfPassesThroughTheKernels) {
  std::vector<uint16_t> all(0x10000);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  const std::vector<const void*> sources{all.data(), all.data()};
  for (const DType type : {DType::kFloat16, DType::kBFloat16}) {
    for (const KernelSet& set : KernelSetsHere()) {
      std::vector<uint16_t> out(all.size());
      const std::vector<void*> destinations{out.data()};
      const ReduceJob job{sources, destinations, all.size(), type, ReduceOp::kMin, {}};
      set.reduce(PlanKernel(job));
      CHECK_EQ(oracle::FirstDifference(out.data(), all.data(), all.size(), type), all.size());
    }
  }
}

TEST(NothingToDo) {
  float value = 7;
  const std::vector<const void*> sources{&value, &value};
  const std::vector<void*> destinations{&value};
  Reduce({sources, destinations, 0, DType::kFloat32, ReduceOp::kSum, {}});
  Reduce({sources, {}, 1, DType::kFloat32, ReduceOp::kSum, {}});
  CHECK_EQ(value, 7.0F);
}

TEST(MeaninglessReductionsAreRefused) {
  for (int t = 0; t < kDTypeCount; ++t) {
    const DType type = TypeOf(t);
    CHECK(CheckReducible(type, ReduceOp::kSum).ok());
    CHECK(CheckReducible(type, ReduceOp::kProduct).ok());
    CHECK_EQ(CheckReducible(type, ReduceOp::kAverage).ok(), type != DType::kBool);
    CHECK_EQ(CheckReducible(type, ReduceOp::kMin).ok(), !IsComplex(type));
    CHECK_EQ(CheckReducible(type, ReduceOp::kMax).ok(), !IsComplex(type));
    CHECK_EQ(CheckReducible(type, ReduceOp::kAdasum).ok(), IsFloat(type));
    CHECK(!CheckReducible(type, static_cast<ReduceOp>(17)).ok());
  }
  const Status refused = CheckReducible(DType::kComplex64, ReduceOp::kMin);
  CHECK_EQ(refused.error().kind, ErrorKind::kUnsupported);
  CHECK(refused.error().message.find("min of complex64") != std::string::npos);
}

TEST(TheWidestKernelsServe) {
  const std::string name = ReduceInstructionSet();
  CHECK_EQ(name, std::string(KernelSetsHere().front().name));
  CHECK_EQ(std::string(KernelSetsHere().back().name), std::string("baseline"));
  CHECK(name == "avx512" || name == "avx2" || name == "baseline");
}
