// Allreduces of GPUs' tensors on several hosts, whose GPUs add up inside each: the bits of the same
// calls of tensors of the host, for every type and operation, on hosts of any shape. Processes:
// tests/fake_gpu.
#include <random>

#include "fake_cuda/gpu_calls.h"

namespace horoacc::testing {
namespace {

Pairs OnHosts(const char* hosts, const Pairs& more = {}) {
  return With(With(InMode("auto"), {{"simulated_hosts", hosts}, {"reduction", "fast"}}), more);
}

std::vector<CaseTensor> Tensors(uint32_t ranks) {
  std::vector<CaseTensor> tensors;
  for (int type = 0; type < kDTypeCount; ++type) {
    const auto of = static_cast<DType>(type);
    for (const ReduceOp by :
         {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      if (!CheckReducible(of, by).ok() || RealOf(of) != of) continue;
      CaseTensor tensor{of, by, {}, 3001};
      if (by == ReduceOp::kAverage) tensor.scale.divisor = ranks;
      tensors.push_back(tensor);
    }
    if (!CheckReducible(of, ReduceOp::kSum).ok() || RealOf(of) != of) continue;
    for (const uint64_t count : {0, 1, 40'001})
      tensors.push_back({of, ReduceOp::kSum, {0.5, 0.25, 1.0}, count});
  }
  return tensors;
}

void CheckHosts(const char* hosts, int ranks, const Pairs& more, bool in_place) {
  const std::vector<CaseTensor> tensors = Tensors(static_cast<uint32_t>(ranks));
  RunRanks(ranks, OnHosts(hosts, more), [&](Engine& engine, int rank) {
    std::mt19937 random(rank);
    CompareWithHost(engine, rank % 2, tensors, in_place, hosts,
                    [&](const CaseTensor& tensor, std::vector<std::byte>& bytes) {
                      Fill(random, tensor, bytes);
                    });
    CHECK(Counter(engine, "gpu_composed_bytes") > 0);
  });
}

TEST(the_bits_are_the_cpus) {
  for (const bool in_place : {true, false}) {
    const Pairs more = {{"fusion_threshold", "65536"}};  // several windows
    CheckHosts("2+2", 4, more, in_place);
    CheckHosts("3+2", 5, more, in_place);
    CheckHosts("2+1+3", 6, more, in_place);
  }
}

/// Allreduces of a float for each index, on the device of each rank.
void ReduceFloats(Engine& engine, int rank, int device, size_t count, int turns) {
  void* const stream = fake_cuda_stream(device);
  const Numbers tensor(count, device);
  for (int turn = 0; turn < turns; ++turn) {
    tensor.Fill(stream, [rank](size_t i) { return Value(rank, i); });
    Finish(engine,
           engine.Submit(OnGpu(Collective::kAllreduce, "x", tensor, &tensor, stream, 0, device)),
           stream);
    tensor.Expect(stream, [](size_t i) { return Value(9, i); });
  }
}

// The GPUs of the second host have no mode in common. In the first call its CPU adds up, and
// then it copies the tensors to the host at once, as the first host does when it hears of that.
TEST(each_host_may_lack_a_mode) {
  setenv("FAKE_CUDA_NO_WORDS", "1", 1);
  RunRanks(4, OnHosts("2+2"), [](Engine& engine, int rank) {
    ReduceFloats(engine, rank, rank == 3 ? 1 : 0, 300'001, 3);
    CHECK_EQ(Counter(engine, "gpu_composed_bytes"), rank < 2 ? 1'200'004U : 0U);
  });
  unsetenv("FAKE_CUDA_NO_WORDS");
}

// Exact sums in rank order, small calls, whose inputs go with the news, and sets inside one host.
TEST(what_the_hosts_gpus_do_not_add_up) {
  RunRanks(4, OnHosts("2+2", {{"reduction", "canonical"}}), [](Engine& engine, int rank) {
    ReduceFloats(engine, rank, 0, 300'001, 2);
    CHECK_EQ(Counter(engine, "gpu_composed_bytes"), 0U);
  });
  RunRanks(4, OnHosts("2+2"), [](Engine& engine, int rank) {
    ReduceFloats(engine, rank, 0, 100, 2);
    CHECK_EQ(Counter(engine, "gpu_composed_bytes"), 0U);
  });
}

}  // namespace
}  // namespace horoacc::testing
