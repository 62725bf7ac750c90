// Times virtual ranks of persistent kernels on GPU 0, and NCCL's ranks on the same GPU where it can
// be loaded: time_persistent LIBRARY [NCCL]. Allreduce of float32, out of place; microseconds of a
// call among many, medians of rounds in which all are timed in turn; one line of JSON each.
#define HOROACC_CHECK_WITHOUT_MAIN
#include <algorithm>
#include <chrono>
#include <functional>

#include "nccl_peer.h"
#include "schedule/algorithms.h"
#include "virtual_ranks.h"

using namespace horoacc;
using namespace horoacc::cuda;

namespace {

struct Contender {
  std::string name;
  std::function<void()> call;
  std::vector<double> microseconds{};
};

KernelImage ImageOf(const std::string& name, uint32_t ranks, const KernelRequest& request) {
  if (name == "one_shot") return CompileFixed(KernelKind::kOneShot, ranks, request).value();
  if (name == "two_shot") return CompileFixed(KernelKind::kTwoShot, ranks, request).value();
  if (name == "direct") return CompileFixed(KernelKind::kDirect, ranks, request).value();
  const auto shape = schedule::Topology::Equal(1, ranks);
  const auto made = schedule::FindAlgorithm(name).value()->make({shape});
  return CompileSchedule(*made, request).value();
}

void Round(Contender& contender, int calls) {
  contender.call();
  Must(cudaDeviceSynchronize());
  const auto begin = std::chrono::steady_clock::now();
  for (int k = 0; k < calls; ++k) contender.call();
  Must(cudaDeviceSynchronize());
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
  contender.microseconds.push_back(spent.count() * 1e6 / calls);
}

struct Memory {
  std::vector<std::unique_ptr<GpuMemory>> blocks;
  std::vector<void*> inputs, outputs;

  Memory(uint32_t ranks, size_t bytes) {
    for (uint32_t r = 0; r < 2 * ranks; ++r) {
      void* const at = blocks.emplace_back(std::make_unique<GpuMemory>(bytes))->get();
      Must(cudaMemset(at, 0, bytes));
      (r % 2 == 0 ? inputs : outputs).push_back(at);
    }
  }
};

/// The kernels that are timed at a size, and their blocks of a rank. All ranks share the GPU's
/// multiprocessors, each of which holds at least one block.
void Time(const Plugin& plugin, const std::string& nccl, uint32_t ranks, size_t bytes) {
  int processors = 0;
  Must(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
  const uint32_t each = static_cast<uint32_t>(processors) / ranks;
  const Memory memory(ranks, bytes);
  std::vector<std::unique_ptr<VirtualRanks>> programs;
  std::vector<Contender> contenders;
  const auto add = [&](const std::string& name, uint32_t channels, uint64_t chunk) {
    const KernelRequest request{
        .count = bytes / sizeof(float), .channels = channels, .chunk_bytes = chunk};
    programs.push_back(std::make_unique<VirtualRanks>(plugin, ImageOf(name, ranks, request)));
    VirtualRanks* const program = programs.back().get();
    contenders.push_back({name, [program, &memory] {
                            const std::string error =
                                program->Launch(memory.inputs, memory.outputs);
                            if (!error.empty()) check::Fail(__FILE__, __LINE__, error);
                          }});
  };
  constexpr size_t kMiB = size_t{1} << 20;
  const auto wanted = static_cast<uint32_t>(std::max<size_t>(bytes / 2048, 1));
  const uint32_t few = std::min(each, wanted);
  if (bytes <= kMiB) add("one_shot", few, 65536);
  if (bytes <= 4 * kMiB) add("two_shot", few, 65536);
  add("direct", std::min(each, std::max(few, 4U)), 65536);
  if (bytes >= kMiB) {
    add("ring", each, 262144);
    add("cpu_reduce", std::max(each / 4, 1U), 262144);
  } else {
    add("ring", 1, 65536);
  }
  if (each >= 4) add("double_tree", std::max(few / 4, 1U), 131072);
  auto peer = NcclPeer::Make(nccl, ranks, std::min(each, 16U));
  if (peer.ok()) {
    contenders.push_back({"NCCL " + peer.value().version(), [&] {
                            const Status enqueued = peer.value().Allreduce(
                                memory.inputs, memory.outputs, bytes / sizeof(float));
                            if (!enqueued.ok()) {
                              check::Fail(__FILE__, __LINE__, enqueued.error().message);
                            }
                          }});
  } else {
    std::printf("no NCCL: %s\n", peer.error().message.c_str());
  }
  for (int round = 0; round < 7; ++round) {
    for (Contender& contender : contenders) Round(contender, bytes > 16 * kMiB ? 10 : 100);
  }
  for (const auto& program : programs) CHECK_EQ(program->End(), "");
  for (Contender& contender : contenders) {
    std::ranges::sort(contender.microseconds);
    const double median = contender.microseconds[contender.microseconds.size() / 2];
    std::printf(
        "{\"what\": \"%s\", \"ranks\": %u, \"bytes\": %zu, \"us\": %.2f, "
        "\"GB/s of 2NS\": %.1f}\n",
        contender.name.c_str(), ranks, bytes, median,
        2.0 * ranks * static_cast<double>(bytes) / median / 1e3);
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const Plugin plugin = OpenPlugin(argv[1]);
  const std::string nccl = argc > 2 ? argv[2] : "libnccl.so.2";
  for (const uint32_t ranks : {2U, 4U, 8U}) {
    for (const size_t kib :
         {size_t{8}, size_t{32}, size_t{128}, size_t{1} << 10, size_t{256} << 10})
      Time(plugin, nccl, ranks, kib << 10);
  }
  return 0;
}
