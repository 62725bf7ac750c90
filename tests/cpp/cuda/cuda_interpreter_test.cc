// Persistent kernels (mode K), their blocks played by threads of the host: every operation, type
// and tail by schedules and by the fixed algorithms, every algorithm and goal, calls that follow
// each other, and calls that are given up.
#include "fake_cuda/kernel_cases.h"

using namespace horoacc;
using namespace horoacc::cuda;
using schedule::Topology;

namespace {

constexpr DType kTypes[] = {DType::kBool,    DType::kUInt8,  DType::kInt8,    DType::kInt16,
                            DType::kInt32,   DType::kInt64,  DType::kFloat16, DType::kBFloat16,
                            DType::kFloat32, DType::kFloat64};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kProduct};
constexpr uint64_t kTails[] = {1, 15, 64, 333};

struct Way {
  const char* algorithm;
  KernelKind kind;
};
constexpr Way kSchedules[] = {{"ring", KernelKind::kSchedule},
                              {"double_tree", KernelKind::kSchedule}};
constexpr Way kFixed[] = {
    {"ring", KernelKind::kOneShot}, {"ring", KernelKind::kTwoShot}, {"ring", KernelKind::kDirect}};

/// Every type, operation, tail and factor that there is.
void RunAll(const Way& way, uint32_t ranks) {
  std::vector<KernelCase> cases;
  uint32_t turn = 0;
  for (const DType type : kTypes) {
    for (const ReduceOp op : kOps) {
      if (!CheckReducible(type, op).ok()) continue;
      for (const uint64_t count : kTails) {
        ++turn;
        const double divisor = op == ReduceOp::kAverage ? ranks : 1.0;
        const bool factors = type != DType::kBool && turn % 4 == 0;
        KernelCase one;
        one.run.algorithm = way.algorithm;
        one.run.shape = Topology::Equal(1, ranks);
        one.run.tensors = {
            {type, op, factors ? Scale{0.5, 3.0, divisor} : Scale{1, 1, divisor}, count}};
        one.run.in_place = turn % 3 == 0;
        one.run.seed = turn;
        one.kind = way.kind;
        one.channels = 1 + turn % 2;
        one.chunk_bytes = turn % 5 == 0 ? 64 : 128;
        one.exact = way.kind != KernelKind::kSchedule;
        cases.push_back(one);
      }
    }
  }
  RunCases(cases);
}

void RunWays(uint32_t ranks) {
  for (const Way& way : kSchedules) RunAll(way, ranks);
  for (const Way& way : kFixed) RunAll(way, ranks);
}

/// A case of an algorithm, whatever its goal, with some payload.
KernelCase CaseOf(const schedule::Algorithm& algorithm, const Topology& shape, uint32_t turn) {
  constexpr DType kSome[] = {DType::kFloat32, DType::kBFloat16, DType::kInt8};
  const DType type = kSome[turn % std::size(kSome)];
  const bool average = turn % 2 == 0;
  const bool rooted =
      algorithm.goal == schedule::Goal::kBroadcast || algorithm.goal == schedule::Goal::kReduce;
  KernelCase one;
  one.run.algorithm = algorithm.name;
  one.run.shape = shape;
  one.run.root = rooted ? turn % shape.ranks() : 0;
  one.run.tensors = {{type, average ? ReduceOp::kAverage : ReduceOp::kSum,
                      Scale{1, 1, average ? static_cast<double>(shape.ranks()) : 1.0},
                      100 + 37 * (turn % 11)}};
  one.run.in_place = algorithm.goal != schedule::Goal::kAllToAll && turn % 4 == 1;
  one.run.seed = turn;
  one.channels = 1 + turn % 2;
  one.depth = 2 + turn % 2;
  one.places = 1 + turn / 2 % 2;
  one.chunk_bytes = 64 << turn % 3;
  one.calls = one.run.in_place ? 1 : 3;
  return one;
}

/// A job of which one block never comes, or comes late.
struct Absence {
  KernelKind kind;
  const char* algorithm;
};

void CheckGivenUp(const Absence& what, bool by_deadline) {
  constexpr uint32_t kRanks = 3;
  std::vector<float> memory(2 * kRanks * 1000, 1.0F);
  const KernelRequest request{.count = 1000, .channels = 2, .chunk_bytes = 256};
  const auto found = schedule::FindAlgorithm(what.algorithm);
  CHECK(found.ok());
  const auto made = found.value()->make({.topology = Topology::Equal(1, kRanks)});
  auto image = what.kind == KernelKind::kSchedule ? CompileSchedule(*made, request)
                                                  : CompileFixed(what.kind, kRanks, request);
  CHECK(image.ok());
  HostKernel kernel(std::move(image).value());
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    kernel.Give(rank, &memory[2000 * rank], &memory[2000 * rank + 1000]);
  }
  HostWatch watch;
  if (by_deadline) watch.deadline = std::chrono::steady_clock::now();
  const uint32_t of_rank = kernel.blocks() / kRanks;
  std::atomic<uint32_t> released{0};
  std::vector<std::thread> blocks;
  for (uint32_t block = of_rank; block < kernel.blocks(); ++block) {  // rank 0 does not come
    blocks.emplace_back([&, block] { released += kernel.Run(block, 1, watch) ? 0 : 1; });
  }
  if (!by_deadline) watch.abort.store(1);
  for (std::thread& block : blocks) block.join();
  // Only a lane that needs nobody can have ended.
  CHECK(released.load() >= 2);
  CHECK(watch.abort.load() == 1);
  CHECK(RankGivenUp(watch.report.load()) > 0);
}

}  // namespace

TEST(EveryOperationTailAndTypeOf1) { RunWays(1); }
TEST(EveryOperationTailAndTypeOf2) { RunWays(2); }
TEST(EveryOperationTailAndTypeOf3) { RunWays(3); }
TEST(EveryOperationTailAndTypeOf4) { RunWays(4); }
TEST(EveryOperationTailAndTypeOf8) { RunWays(8); }

TEST(EveryAlgorithmAndGoal) {
  uint32_t turn = 0;
  for (const Topology& shape :
       {Topology::Equal(1, 1), Topology::Equal(1, 2), Topology::Equal(1, 3), Topology::Equal(1, 4),
        Topology::Equal(2, 2), Topology({1, 3}), Topology({3, 1, 2}), Topology::Equal(1, 8)}) {
    std::vector<KernelCase> cases;
    for (const schedule::Algorithm& algorithm : schedule::Algorithms()) {
      for (uint32_t variant = 0; variant < 4; ++variant) {
        cases.push_back(CaseOf(algorithm, shape, turn++));
      }
    }
    RunCases(cases);
  }
}

TEST(CallsFollowEachOther) {
  std::vector<KernelCase> cases;
  for (const Way& way : {kSchedules[0], kSchedules[1], kFixed[0], kFixed[1], kFixed[2]}) {
    for (const uint64_t count : {1, 2, 700}) {
      KernelCase one;
      one.run.algorithm = way.algorithm;
      one.run.shape = Topology::Equal(1, 3);
      one.run.tensors = {{DType::kFloat32, ReduceOp::kSum, {}, count}};
      one.kind = way.kind;
      one.channels = 2;
      one.calls = 40;
      cases.push_back(one);
    }
  }
  RunCases(cases);
}

TEST(AnAbortReleasesEverybody) {
  for (const Absence& what :
       {Absence{KernelKind::kSchedule, "ring"}, Absence{KernelKind::kSchedule, "double_tree"},
        Absence{KernelKind::kOneShot, "ring"}, Absence{KernelKind::kTwoShot, "ring"},
        Absence{KernelKind::kDirect, "ring"}}) {
    CheckGivenUp(what, false);
    CheckGivenUp(what, true);
  }
}

TEST(WhatDoesNotFitIsRefused) {
  const auto refuses = [](const Result<KernelImage>& image, const char* why) {
    CHECK(!image.ok());
    CHECK(image.error().message.find(why) != std::string::npos);
  };
  const auto ring = schedule::FindAlgorithm("ring").value()->make({Topology::Equal(1, 4)});
  const auto scatter =
      schedule::FindAlgorithm("ring_reduce_scatter").value()->make({Topology::Equal(1, 4)});
  const auto large = schedule::FindAlgorithm("ring").value()->make({Topology::Equal(1, 65)});
  refuses(CompileSchedule(*large, {.count = 1}), "1 to 64 ranks, not 65");
  refuses(CompileSchedule(*ring, {.count = 1, .depth = 1}), "a depth of 2");
  refuses(CompileSchedule(*ring, {.count = 1, .sizes = {1, 1, 1, 1}}), "0 sizes are needed, not 4");
  refuses(CompileSchedule(*scatter, {.sizes = {1, 2}}), "4 sizes are needed, not 2");
  refuses(CompileSchedule(*ring, {.type = DType::kComplex64, .count = 1}), "no sum of complex64");
  refuses(CompileSchedule(*ring, {.type = DType::kComplex64, .op = ReduceOp::kProduct, .count = 1}),
          "no product of complex");
  refuses(CompileSchedule(*ring, {.op = ReduceOp::kAdasum, .count = 1}), "no adasum of float32");
  refuses(CompileFixed(KernelKind::kSchedule, 4, {.count = 1}), "are allreduces");
  refuses(CompileFixed(KernelKind::kOneShot, 0, {.count = 1}), "1 to 64 ranks, not 0");
  const KernelImage image = CompileSchedule(*ring, {.count = 1}).value();
  CHECK(IsProgram(image.data(), image.size()));
  CHECK(!IsProgram(image.data(), image.size() - 1));
}
