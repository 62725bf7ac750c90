#pragma once
// A persistent kernel with all its ranks, in one process of the host.
#include <barrier>
#include <memory>
#include <vector>

#include "execute/cuda/persistent/kernel_compiler.h"
#include "fake_cuda/host_cta.h"

namespace horoacc::cuda {

/// A program with the memory of all its ranks.
class HostKernel {
 public:
  explicit HostKernel(KernelImage image) : image_(std::move(image)) {
    const uint64_t words = header().workspace_bytes / sizeof(uint64_t) + 16;
    for (uint32_t rank = 0; rank < header().ranks; ++rank) {
      // Aligned like a GPU's memory.
      uint64_t* at = workspaces_.emplace_back(std::make_unique<uint64_t[]>(words)).get();
      while (reinterpret_cast<uintptr_t>(at) % 64 != 0) ++at;
      call_.workspace[rank] = reinterpret_cast<char*>(at);
      ends_.push_back(std::make_unique<std::barrier<>>(header().lanes * header().channels));
    }
  }

  [[nodiscard]] const KernelHeader& header() const { return HeaderOf(image_); }
  [[nodiscard]] uint32_t blocks() const {
    return header().ranks * header().lanes * header().channels;
  }
  void Give(uint32_t rank, const void* input, void* output) {
    call_.input[rank] = static_cast<const char*>(input);
    call_.output[rank] = static_cast<char*>(output);
  }

  /// Runs block `block` in `calls` calls. A call of a rank ends when all its blocks have ended, and
  /// the next one may begin while other ranks are still in this one.
  bool Run(uint32_t block, uint64_t calls, HostWatch& watch) {
    const BlockPlace place{block / (header().lanes * header().channels),
                           block / header().channels % header().lanes, block % header().channels};
    HostCta cta(watch, place, 1 + header().window_elements % 3 * 4);
    const KernelProgram program(header(), reinterpret_cast<const char*>(image_.data()));
    bool ok = true;
    for (uint64_t call = 0; call < calls; ++call) {
      KernelCall now = call_;
      now.call = call;
      ok = RunBlock(cta, program, now) && ok;
      ends_[place.rank]->arrive_and_wait();
    }
    return ok;
  }

 private:
  const KernelImage image_;
  std::vector<std::unique_ptr<uint64_t[]>> workspaces_;
  std::vector<std::unique_ptr<std::barrier<>>> ends_;
  KernelCall call_{};
};

}  // namespace horoacc::cuda
