// Checks persistent kernels with virtual ranks on GPU 0: check_persistent LIBRARY [TEST].
// Every operation, type and tail, every algorithm and goal, an abort, a deadline, and more blocks
// than fit; the cases are those of tests/cpp.
#define HOROACC_CHECK_WITHOUT_MAIN
#include <chrono>
#include <map>
#include <thread>

#include "support/run_cases.h"
#include "virtual_ranks.h"

using namespace horoacc;
using namespace horoacc::cuda;
using schedule::Topology;

namespace {

/// The plug-in under test; set once, by main.
Plugin plugin;

struct Case {
  RunCase run;
  KernelKind kind = KernelKind::kSchedule;
  KernelRequest request{};
  bool exact = false;
};

/// One case on the GPU: inputs are copied there, and outputs back to the case's memory.
void RunOnGpu(const Case& what) {
  OddMemory memory;
  std::map<void*, size_t> sizes;
  const CaseData data(what.run, [&](uint32_t member, size_t bytes) {
    std::byte* const at = memory.allocate()(member, bytes);
    sizes[at] = bytes;
    return at;
  });
  KernelRequest request = what.request;
  const Payload payload = data.PayloadOf(0);
  request.type = payload.tensors[0].type;
  request.op = payload.tensors[0].op;
  request.scale = payload.tensors[0].scale;
  request.count = payload.tensors[0].count;
  request.sizes = payload.sizes;
  auto image = what.kind == KernelKind::kSchedule ? CompileSchedule(*data.MakeSchedule(), request)
                                                  : CompileFixed(what.kind, data.ranks(), request);
  if (!image.ok()) check::Fail(__FILE__, __LINE__, what.run.Name() + image.error().message);
  VirtualRanks ranks(plugin, image.value());
  std::vector<std::unique_ptr<GpuMemory>> blocks;
  std::vector<void*> inputs;
  std::vector<void*> outputs;
  // An element further than what is aligned, now and then.
  const size_t off = what.run.seed % 2 * SizeOf(request.type);
  for (uint32_t rank = 0; rank < data.ranks(); ++rank) {
    const PayloadTensor tensor = data.PayloadOf(rank).tensors[0];
    auto* const input = const_cast<void*>(tensor.input);
    for (void* host : {input, tensor.output}) {
      const size_t bytes = sizes[host];
      blocks.push_back(std::make_unique<GpuMemory>(bytes + off));
      void* const gpu = static_cast<char*>(blocks.back()->get()) + off;
      Must(cudaMemcpy(gpu, host, bytes, cudaMemcpyHostToDevice));
      (host == input ? inputs : outputs).push_back(gpu);
      if (tensor.output == input) {
        outputs.push_back(gpu);
        break;
      }
    }
  }
  const std::string launched = ranks.Launch(inputs, outputs);
  const std::string ended = launched.empty() ? ranks.End() : launched;
  if (!ended.empty()) check::Fail(__FILE__, __LINE__, what.run.Name() + ": " + ended);
  for (uint32_t rank = 0; rank < data.ranks(); ++rank) {
    void* const host = data.PayloadOf(rank).tensors[0].output;
    Must(cudaMemcpy(host, outputs[rank], sizes[host], cudaMemcpyDeviceToHost));
    data.Check(rank, what.exact);
  }
}

void RunAll(uint32_t ranks) {
  constexpr KernelKind kKinds[] = {KernelKind::kSchedule, KernelKind::kSchedule,
                                   KernelKind::kOneShot, KernelKind::kTwoShot, KernelKind::kDirect};
  uint32_t turn = 0;
  for (int t = 0; t <= static_cast<int>(DType::kFloat64); ++t) {
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      if (!CheckReducible(static_cast<DType>(t), op).ok()) continue;
      for (size_t way = 0; way < std::size(kKinds); ++way) {
        for (const uint64_t count : {1, 1000, 70'001}) {
          ++turn;
          Case one;
          one.run.algorithm = way == 1 ? "double_tree" : "ring";
          one.run.shape = Topology::Equal(1, ranks);
          const double divisor = op == ReduceOp::kAverage ? ranks : 1.0;
          one.run.tensors = {{static_cast<DType>(t), op, {1, 1, divisor}, count}};
          one.run.in_place = turn % 3 == 0;
          one.run.seed = turn;
          one.kind = kKinds[way];
          one.request.channels = 1 + turn % 4;
          one.request.chunk_bytes = 4096 << turn % 3;
          one.exact = one.kind != KernelKind::kSchedule;
          RunOnGpu(one);
        }
      }
    }
  }
}

/// A ring in which one rank waits for a message that no rank sends.
KernelImage Stuck() {
  const auto ring = schedule::FindAlgorithm("ring").value()->make({Topology::Equal(1, 4)});
  KernelImage image = CompileSchedule(*ring, {.count = 1000}).value();
  auto* const first = reinterpret_cast<KernelEnd*>(image.data() + HeaderOf(image).sources);
  first->ordinal += 1000;
  return image;
}

}  // namespace

TEST(operations_of_1) { RunAll(1); }
TEST(operations_of_2) { RunAll(2); }
TEST(operations_of_3) { RunAll(3); }
TEST(operations_of_4) { RunAll(4); }
TEST(operations_of_8) { RunAll(8); }

TEST(algorithms) {
  uint32_t turn = 0;
  for (const Topology& shape :
       {Topology::Equal(1, 4), Topology::Equal(2, 2), Topology({3, 1, 2}), Topology::Equal(1, 8)}) {
    for (const schedule::Algorithm& algorithm : schedule::Algorithms()) {
      for (const uint64_t count : {100, 30'000}) {
        ++turn;
        const bool average = turn % 2 == 0;
        Case one;
        one.run.algorithm = algorithm.name;
        one.run.shape = shape;
        one.run.tensors = {{turn % 3 == 0 ? DType::kInt8 : DType::kBFloat16,
                            average ? ReduceOp::kAverage : ReduceOp::kSum,
                            {1, 1, average ? static_cast<double>(shape.ranks()) : 1.0},
                            count}};
        one.run.seed = turn;
        one.request.channels = 1 + turn % 2;
        one.request.chunk_bytes = 1024;
        RunOnGpu(one);
      }
    }
  }
}

TEST(an_abort_and_a_deadline_release_everybody) {
  for (const bool by_deadline : {false, true}) {
    VirtualRanks ranks(plugin, Stuck());
    std::vector<std::unique_ptr<GpuMemory>> blocks;
    std::vector<void*> pointers;
    for (int k = 0; k < 4; ++k) {
      blocks.push_back(std::make_unique<GpuMemory>(4000));
      pointers.push_back(blocks.back()->get());
    }
    CHECK_EQ(ranks.Launch(pointers, pointers, by_deadline ? 0.3 : 60), "");
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const auto begin = std::chrono::steady_clock::now();
    if (!by_deadline) ranks.Abort();
    const std::string error = ranks.End();
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
    std::printf("  released after %.3f s: %s\n", spent.count(), error.c_str());
    CHECK(error.find(by_deadline ? "past its deadline; rank " : "was aborted; rank ") !=
          std::string::npos);
    CHECK(spent.count() < 5);
    CHECK(!ranks.Launch(pointers, pointers).empty());
  }
}

TEST(more_blocks_than_fit_are_refused) {
  const auto ring = schedule::FindAlgorithm("ring").value()->make({Topology::Equal(1, 8)});
  const KernelImage image = CompileSchedule(*ring, {.count = 8, .channels = 1000}).value();
  VirtualRanks ranks(plugin, image);
  const GpuMemory memory(8 * 4 * 8);
  std::vector<void*> pointers;
  for (int k = 0; k < 8; ++k) pointers.push_back(static_cast<char*>(memory.get()) + 32 * k);
  const std::string error = ranks.Launch(pointers, pointers);
  CHECK(error.find("8000 blocks wait for each other") != std::string::npos);
}

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  plugin = OpenPlugin(argv[1]);
  return check::RunTests(argc > 2 ? argv[2] : nullptr);
}
