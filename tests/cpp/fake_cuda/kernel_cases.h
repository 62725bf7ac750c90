#pragma once
// Calls of persistent kernels on the host, with inputs and an oracle.
#include "fake_cuda/host_kernel.h"
#include "support/run_cases.h"

namespace horoacc::cuda {

struct KernelCase {
  RunCase run;  ///< algorithm and payload; its options are the host executor's, and not used
  KernelKind kind = KernelKind::kSchedule;
  uint32_t channels = 1;
  uint32_t depth = 2;
  uint32_t places = 2;
  uint64_t chunk_bytes = 256;
  uint64_t calls = 1;
  bool exact = false;  ///< to the bit; else floats are compared with what was computed in float64
};

inline KernelRequest RequestOf(const KernelCase& what, const Payload& payload) {
  const PayloadTensor& tensor = payload.tensors.front();
  return {.type = tensor.type,
          .op = tensor.op,
          .scale = tensor.scale,
          .count = tensor.count,
          .sizes = payload.sizes,
          .channels = what.channels,
          .depth = what.depth,
          .places = what.places,
          .chunk_bytes = what.chunk_bytes};
}

class RunningCase {
 public:
  explicit RunningCase(KernelCase what)
      : what_(std::move(what)), data_(what_.run, memory_.allocate()) {
    Result<KernelImage> image = Compile();
    if (!image.ok()) check::Fail(__FILE__, __LINE__, Name() + ": " + image.error().message);
    kernel_ = std::make_unique<HostKernel>(std::move(image).value());
    for (uint32_t rank = 0; rank < data_.ranks(); ++rank) {
      const PayloadTensor tensor = data_.PayloadOf(rank).tensors.front();
      kernel_->Give(rank, tensor.input, tensor.output);
    }
  }

  [[nodiscard]] uint32_t blocks() const { return kernel_->blocks(); }
  void Run(uint32_t block, HostWatch& watch) {
    if (block >= blocks() || kernel_->Run(block, what_.calls, watch)) return;
    const uint64_t report = watch.report.load();
    check::Fail(__FILE__, __LINE__,
                Name() + " was given up by rank " + std::to_string(RankGivenUp(report)) +
                    ", lane " + std::to_string(LaneGivenUp(report)) + ", step " +
                    std::to_string(StepGivenUp(report)));
  }
  void Check() const {
    for (uint32_t rank = 0; rank < data_.ranks(); ++rank) {
      data_.Check(rank, what_.exact);
    }
  }
  [[nodiscard]] std::string Name() const {
    return what_.run.Name() + ", kind " + std::to_string(static_cast<int>(what_.kind)) + ", " +
           std::to_string(what_.channels) + " channels, chunks of " +
           std::to_string(what_.chunk_bytes);
  }

 private:
  [[nodiscard]] Result<KernelImage> Compile() const {
    const KernelRequest request = RequestOf(what_, data_.PayloadOf(0));
    if (what_.kind != KernelKind::kSchedule) {
      return CompileFixed(what_.kind, data_.ranks(), request);
    }
    return CompileSchedule(*data_.MakeSchedule(), request);
  }

  const KernelCase what_;
  OddMemory memory_;
  const CaseData data_;
  std::unique_ptr<HostKernel> kernel_;
};

/// Many cases, one after the other, on as many threads as the largest has blocks.
inline void RunCases(const std::vector<KernelCase>& cases) {
  std::vector<std::unique_ptr<RunningCase>> running;
  uint32_t threads = 0;
  for (const KernelCase& one : cases) {
    threads = std::max(threads, running.emplace_back(std::make_unique<RunningCase>(one))->blocks());
  }
  HostWatch watch;
  std::vector<std::thread> blocks;
  for (uint32_t block = 0; block < threads; ++block) {
    blocks.emplace_back([&running, &watch, block] {
      for (const auto& one : running) one->Run(block, watch);
    });
  }
  for (std::thread& block : blocks) block.join();
  for (const auto& one : running) one->Check();
}

}  // namespace horoacc::cuda
