// The reduction of GPUs, thread after thread on the host: every type, operation and number of
// sources, with tails and misalignments, against the oracle, to the bit.
#include <memory>

#include "execute/cuda/kernels/kernel_choice.h"
#include "execute/cuda/kernels/kernel_plan.h"
#include "execute/reduce_oracle.h"
#include "execute/reduce_values.h"
#include "support/check.h"

using namespace horoacc;
using namespace horoacc::cuda;

namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kProduct};
constexpr size_t kMost = 700;
constexpr char kUntouched = 'Z';

/// A kernel on a grid of a few threads.
struct Simulated {
  const ReducePlan& plan;
  uint32_t blocks;
  uint32_t threads;

  template <typename E, uint32_t P, typename Op>
  void Take(const Op& op) const {
    CHECK(P == 0 || plan.args.operands.sources <= P);
    for (uint32_t block = blocks; block-- > 0;) {
      for (uint32_t thread = 0; thread < threads; ++thread) {
        ReduceOnGrid<E, P>(plan.args.operands, plan.args.factors, op,
                           {block, blocks, thread, threads});
      }
    }
  }
};

void Simulate(const ReducePlan& plan, uint32_t blocks, uint32_t threads) {
  ChooseReduce(plan.type, plan.op, plan.args.operands.sources, plan.scaled,
               Simulated{plan, blocks, threads});
}

/// The misalignment of a job's buffers: bytes of source r and of each destination beyond 16.
struct Layout {
  size_t source;
  size_t step;  ///< further for each rank
  size_t destination;
  bool in_place;
};

/// Buffers of exactly the job's size, so that an AddressSanitizer sees a byte too many.
class Memory {
 public:
  Memory(const Sources& from, size_t bytes, const Layout& layout) : bytes_(bytes) {
    for (const void* source : from.pointers()) {
      char* const at = New((layout.source + sources.size() * layout.step) % 16);
      std::memcpy(at, source, bytes);
      sources.push_back(at);
      if (layout.in_place) destinations.push_back(at);
    }
    if (layout.in_place) return;
    destinations.push_back(New(layout.destination));
    destinations.push_back(New((layout.destination + 5) % 16));
  }

  void CheckAround() const {
    for (const Block& block : blocks_) {
      for (size_t i = 0; i < block.before; ++i) CHECK_EQ(block.bytes[i], kUntouched);
    }
  }

  std::vector<const void*> sources;
  std::vector<void*> destinations;

 private:
  struct Block {
    std::unique_ptr<char[]> bytes;
    size_t before;
  };

  // operator new gives multiples of 16. The last byte of the block is the buffer's.
  char* New(size_t off) {
    Block& block = blocks_.emplace_back(std::make_unique<char[]>(off + bytes_), off);
    std::fill_n(block.bytes.get(), off + bytes_, kUntouched);
    return block.bytes.get() + off;
  }

  const size_t bytes_;
  std::vector<Block> blocks_;
};

void CheckJob(const Sources& sources, DType type, ReduceOp op, const Scale& scale, size_t count,
              const Layout& layout, const std::vector<char>& expected) {
  const Memory memory(sources, count * SizeOf(type), layout);
  const ReduceJob job{memory.sources, memory.destinations, count, type, op, scale};
  const auto plan = PlanReduce(job);
  CHECK(plan.ok());
  Simulate(plan.value(), 1 + count % 3, count % 2 == 0 ? 32 : 7);
  for (const void* destination : memory.destinations) {
    const size_t wrong = oracle::FirstDifference(destination, expected.data(), count, type);
    if (wrong == count) continue;
    std::fprintf(stderr, "%s %s of %zu, %zu elements at +%zu +%zu to +%zu: element %zu differs\n",
                 NameOf(type).data(), NameOf(op).data(), sources.pointers().size(), count,
                 layout.source, layout.step, layout.destination, wrong);
    CHECK_EQ(wrong, count);
  }
  memory.CheckAround();
}

void CheckSources(size_t ranks) {
  for (int t = 0; t < kDTypeCount; ++t) {
    const auto type = static_cast<DType>(t);
    const size_t unit = SizeOf(type);
    const Sources sources(type, ranks, kMost);
    const Layout layouts[] = {{0, 0, 0, false},   {0, 0, 0, true},       {unit, 0, unit, false},
                              {unit, 0, 0, true}, {0, unit, 8, false},   {8, unit, 0, true},
                              {1, 3, 7, false},   {unit / 2, 1, 0, true}};
    for (const ReduceOp op : kOps) {
      if (!CheckReducible(type, op).ok()) continue;
      if (IsComplex(type) && op != ReduceOp::kProduct) continue;  // sums of their parts
      const double divisor = op == ReduceOp::kAverage ? static_cast<double>(ranks) : 1.0;
      for (const Scale scale :
           {Scale{1, 1, divisor}, Scale{0.5, 1, divisor}, Scale{0.3, 0.7, divisor},
            Scale{1, 2.5, divisor}, Scale{1.0 / 3, 1e300, divisor}}) {
        const std::vector<char> expected =
            oracle::Reduce(sources.pointers(), kMost, type, op, scale);
        for (const size_t count : {0, 1, 15, 33, 64, 257, 700}) {
          for (const Layout& layout : layouts) {
            CheckJob(sources, type, op, scale, count, layout, expected);
          }
        }
      }
    }
  }
}

/// Sums of every number of sources that the tree can split in another way.
void CheckTree(DType type) {
  for (size_t ranks = 1; ranks <= kMostSources; ++ranks) {
    const Sources sources(type, ranks, 40);
    const std::vector<char> expected =
        oracle::Reduce(sources.pointers(), 40, type, ReduceOp::kSum, {});
    CheckJob(sources, type, ReduceOp::kSum, {}, 40, {0, 0, 0, true}, expected);
  }
}

}  // namespace

TEST(EveryTypeOperationAndLayoutOf1) { CheckSources(1); }
TEST(EveryTypeOperationAndLayoutOf2) { CheckSources(2); }
TEST(EveryTypeOperationAndLayoutOf3) { CheckSources(3); }
TEST(EveryTypeOperationAndLayoutOf4) { CheckSources(4); }
TEST(EveryTypeOperationAndLayoutOf5) { CheckSources(5); }
TEST(EveryTypeOperationAndLayoutOf6) { CheckSources(6); }
TEST(EveryTypeOperationAndLayoutOf7) { CheckSources(7); }
TEST(EveryTypeOperationAndLayoutOf8) { CheckSources(8); }
TEST(EveryTypeOperationAndLayoutOf11) { CheckSources(11); }

TEST(EveryNumberOfSources) {
  CheckTree(DType::kFloat32);
  CheckTree(DType::kBFloat16);
}

TEST(WhatTheKernelsDoNotDoIsRefused) {
  float value = 0;
  const std::vector<const void*> source{&value};
  const std::vector<void*> destination{&value};
  const auto refuses = [&](DType type, ReduceOp op, const char* why) {
    const auto plan = PlanReduce({source, destination, 1, type, op, {}});
    CHECK(!plan.ok());
    CHECK_EQ(plan.error().kind, ErrorKind::kUnsupported);
    CHECK(plan.error().message.find(why) != std::string::npos);
  };
  refuses(DType::kComplex64, ReduceOp::kSum, "no sum of complex64");
  refuses(DType::kFloat32, ReduceOp::kAdasum, "no adasum of float32");
  refuses(DType::kInt32, ReduceOp::kBitAnd, "no bitwise and of int32");
  refuses(DType::kBool, ReduceOp::kAverage, "average of bool");
  const std::vector<const void*> many(kMostSources + 1, &value);
  const auto plan = PlanReduce({many, destination, 1, DType::kFloat32, ReduceOp::kSum, {}});
  CHECK(!plan.ok() && plan.error().message.find("not 65 and 1") != std::string::npos);
  CHECK(!PlanReduce({{}, destination, 1, DType::kFloat32, ReduceOp::kSum, {}}).ok());
}
