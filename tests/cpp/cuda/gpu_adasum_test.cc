// Adasum and products of complex numbers on GPUs, through the whole engine on the fake GPU: the
// bits of the same calls of the host's tensors, in every mode. Processes: tests/fake_gpu.
#include <cstring>
#include <random>

#include "execute/adasum_oracle.h"
#include "fake_cuda/gpu_calls.h"

namespace horoacc::testing {
namespace {

struct Case {
  const char* mode;
  int ranks;
  bool a_gpu_each;  ///< as far as there are GPUs
};
// Ranks that share a GPU may have kernels that wait for each other with MPS.
constexpr Case kCases[] = {{"leader", 1, false}, {"leader", 3, false}, {"leader", 8, false},
                           {"stream", 2, true},  {"stream", 4, true},  {"kernel", 2, true},
                           {"kernel", 4, true}};

/// Grouped allreduces of such tensors, of the host's and of a GPU's: inputs and results.
struct Group {
  std::vector<CaseTensor> tensors;
  std::vector<std::vector<std::byte>> inputs{}, wanted{}, found{};

  void Draw(int rank) {
    std::mt19937 random(rank);
    for (const CaseTensor& tensor : tensors) {
      const size_t bytes = tensor.count * SizeOf(tensor.type);
      Fill(random, tensor, inputs.emplace_back(bytes));
      wanted.emplace_back(bytes);
      found.emplace_back(bytes);
    }
  }
  [[nodiscard]] Submission Make(const char* name) const {
    Submission group = Allreduce(name, tensors[0], nullptr, nullptr);
    group.grouped = true;
    group.request.tensors.clear();
    group.buffers.clear();
    for (const CaseTensor& tensor : tensors)
      group.request.tensors.push_back({tensor.type, {static_cast<int64_t>(tensor.count)}});
    return group;
  }
  void RunOnHost(Engine& engine) {
    Submission group = Make("on_host");
    for (size_t t = 0; t < tensors.size(); ++t)
      group.buffers.push_back({inputs[t].data(), wanted[t].data()});
    CHECK(WaitAndRelease(engine, engine.Submit(std::move(group)).value()).ok());
  }
  void RunOnGpu(Engine& engine, int device, bool in_place) {
    void* const stream = fake_cuda_stream(device);
    Submission group = Make("on_gpu");
    group.device = {device, stream};
    std::vector<std::unique_ptr<OnDevice>> memory;
    for (size_t t = 0; t < tensors.size(); ++t) {
      const size_t bytes = inputs[t].size();
      const OnDevice& given = *memory.emplace_back(std::make_unique<OnDevice>(device, bytes + 1));
      if (bytes > 0) std::memcpy(given.host(), inputs[t].data(), bytes);
      if (!in_place) memory.push_back(std::make_unique<OnDevice>(device, bytes + 1));
      group.buffers.push_back({given.data(), memory.back()->data()});
    }
    const auto buffers = group.buffers;
    Finish(engine, engine.Submit(std::move(group)), stream);
    fake_cuda_synchronize(stream);
    for (size_t t = 0; t < tensors.size(); ++t) {
      const void* const result = fake_cuda_real(buffers[t].output);
      if (!found[t].empty()) std::memcpy(found[t].data(), result, found[t].size());
    }
  }
  void Compare(const Case& one) const {
    for (size_t t = 0; t < tensors.size(); ++t) {
      const size_t wrong = oracle::FirstDifference(found[t].data(), wanted[t].data(),
                                                   tensors[t].count, tensors[t].type);
      if (wrong == tensors[t].count) continue;
      check::Fail(__FILE__, __LINE__,
                  std::string(NameOf(tensors[t].op)) + " of " + std::to_string(tensors[t].count) +
                      " " + std::string(NameOf(tensors[t].type)) + " in mode " + one.mode + " on " +
                      std::to_string(one.ranks) + " ranks: element " + std::to_string(wrong));
    }
  }
};

std::vector<CaseTensor> OfTypes(ReduceOp op, std::initializer_list<DType> types, Scale scale) {
  std::vector<CaseTensor> tensors;
  for (const DType type : types) {
    for (const uint64_t count : {0, 1, 40'001, 1003, 100'003})
      tensors.push_back({type, op, scale, count});
  }
  return tensors;
}

// With the small ones, more than the tensors of a window that are launched at a time.
std::vector<CaseTensor> Floats(Scale scale) {
  std::vector<CaseTensor> tensors =
      OfTypes(ReduceOp::kAdasum,
              {DType::kFloat32, DType::kFloat16, DType::kFloat64, DType::kBFloat16}, scale);
  tensors.insert(tensors.end(), 150, {DType::kFloat32, ReduceOp::kAdasum, scale, 7});
  return tensors;
}
std::vector<CaseTensor> ComplexNumbers(Scale scale) {
  return OfTypes(ReduceOp::kProduct, {DType::kComplex64, DType::kComplex128}, scale);
}

// A buffer of 64 KiB is smaller than a chunk of Adasum's; the large one holds everything.
void CheckModes(std::vector<CaseTensor> (*tensors)(Scale)) {
  setenv("FAKE_CUDA_MPS", "1", 1);
  for (const Case& one : kCases) {
    for (const char* buffer : {"65536", "67108864"}) {
      RunRanks(one.ranks, With(InMode(one.mode), {{"fusion_threshold", buffer}}),
               [&](Engine& engine, int rank) {
                 for (const Scale scale : {Scale{}, Scale{0.3, 1.7, 1.0}}) {
                   Group group{tensors(scale)};
                   group.Draw(rank);
                   group.RunOnHost(engine);
                   group.RunOnGpu(engine, one.a_gpu_each ? rank % 2 : 0, scale == Scale{});
                   group.Compare(one);
                 }
                 CHECK_EQ(Counter(engine, "gpu_bytes"), 0U);
                 const std::string counter = std::string("gpu_") + one.mode + "_bytes";
                 CHECK(Counter(engine, counter) > 0);
               });
    }
  }
  unsetenv("FAKE_CUDA_MPS");
}

TEST(adasum_has_the_cpus_bits) { CheckModes(Floats); }
TEST(products_of_complex_numbers_have_the_cpus_bits) { CheckModes(ComplexNumbers); }

TEST(adasum_is_that_of_the_formula) {
  constexpr int kRanks = 5;
  constexpr size_t kCount = 50'021;
  std::vector<oracle::Vector> vectors;
  for (int rank = 0; rank < kRanks; ++rank) {
    std::mt19937 random(rank);
    std::vector<std::byte> bytes(kCount * sizeof(double));
    Fill(random, {DType::kFloat64, ReduceOp::kAdasum, {}, kCount}, bytes);
    std::memcpy(vectors.emplace_back(kCount).data(), bytes.data(), bytes.size());
  }
  const oracle::Vector wanted = oracle::Combined(vectors, 0, kRanks);
  RunRanks(kRanks, InMode("leader"), [&](Engine& engine, int rank) {
    Group group{{{DType::kFloat64, ReduceOp::kAdasum, {}, kCount}}};
    group.Draw(rank);
    group.RunOnGpu(engine, 0, true);
    const auto* const found = reinterpret_cast<const double*>(group.found[0].data());
    for (size_t k = 0; k < kCount; ++k) CHECK(std::abs(found[k] - wanted[k]) < 1e-11);
  });
}

// The ranks learn in the first call that their GPUs have no mode in common, when its tensors are
// still there; in the next ones they are on the host before the call is told of.
TEST(adasum_goes_through_the_cpu_where_gpus_cannot) {
  setenv("FAKE_CUDA_NO_WORDS", "1", 1);
  RunRanks(3, InMode("auto"), [](Engine& engine, int rank) {
    for (int turn = 0; turn < 3; ++turn) {
      Group group{Floats({})};
      group.Draw(rank + turn);
      group.RunOnHost(engine);
      group.RunOnGpu(engine, rank % 2, turn == 1);
      group.Compare({"auto", 3, true});
    }
    CHECK(Counter(engine, "gpu_bytes") > 0);
  });
  unsetenv("FAKE_CUDA_NO_WORDS");
}

// Nor where one rank can pin no memory that the others see. Everything else stays on GPUs.
TEST(adasum_goes_through_the_cpu_where_a_rank_cannot_pin) {
  setenv("FAKE_CUDA_PINS_LITTLE", "1", 1);
  RunRanks(3, InMode("stream"), [](Engine& engine, int rank) {
    for (int turn = 0; turn < 3; ++turn) {
      Group group{Floats({0.3, 1.7, 1.0})};
      group.Draw(rank + turn);
      group.RunOnHost(engine);
      group.RunOnGpu(engine, rank == 1 ? 1 : 0, turn == 1);
      group.Compare({"stream", 3, true});
    }
    const uint64_t copied = Counter(engine, "gpu_bytes");
    CHECK(copied > 0);
    CHECK_EQ(Counter(engine, "gpu_stream_bytes"), 0U);
    Group products{ComplexNumbers({})};
    products.Draw(rank);
    products.RunOnHost(engine);
    products.RunOnGpu(engine, rank == 1 ? 1 : 0, true);
    products.Compare({"stream", 3, true});
    CHECK_EQ(Counter(engine, "gpu_bytes"), copied);
    CHECK(Counter(engine, "gpu_stream_bytes") > 0);
  });
  unsetenv("FAKE_CUDA_PINS_LITTLE");
}

// On several hosts neither is the GPUs'.
TEST(hosts_combine_and_multiply_by_the_cpu) {
  RunRanks(4, With(InMode("auto"), {{"simulated_hosts", "2+2"}}), [](Engine& engine, int rank) {
    for (const auto& tensors : {Floats({}), ComplexNumbers({})}) {
      Group group{tensors};
      group.Draw(rank);
      group.RunOnHost(engine);
      group.RunOnGpu(engine, rank % 2, true);
      group.Compare({"auto", 4, true});
    }
    CHECK_EQ(Counter(engine, "gpu_composed_bytes"), 0U);
  });
}

TEST(a_rank_that_fails_ends_an_adasum) {
  Pairs settings = InMode("stream");
  settings.emplace_back("fault", "begin:1:2:error");
  RunRanks(3, settings, [](Engine& engine, int rank) {
    Group group{Floats({})};
    group.Draw(rank);
    group.RunOnGpu(engine, 0, true);
    void* const stream = fake_cuda_stream(0);
    const OnDevice memory(0, 400'000);
    Submission again = Allreduce("again", {DType::kFloat32, ReduceOp::kAdasum, {}, 100'000},
                                 memory.data(), memory.data());
    again.device = {0, stream};
    const auto handle = engine.Submit(std::move(again));
    const Status outcome = handle.ok() ? WaitAndRelease(engine, handle.value()) : handle.error();
    CHECK(!outcome.ok());
  });
  CHECK_EQ(fake_cuda_waits(), 0);
}

}  // namespace
}  // namespace horoacc::testing
