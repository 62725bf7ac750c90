#pragma once
// Blocks of a persistent kernel, played by threads of the host: one thread plays all threads of a
// block, one after the other (execute/cuda/kernel_wait.h says what a block has to offer).
#include <atomic>
#include <barrier>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "execute/cuda/kernel_compiler.h"
#include "execute/cuda/kernel_instance.h"

namespace horoacc::cuda {

/// What all blocks of a job look at while they wait.
struct HostWatch {
  std::atomic<uint32_t> abort{0};
  std::atomic<uint64_t> report{0};
  std::chrono::steady_clock::time_point deadline =
      std::chrono::steady_clock::now() + std::chrono::minutes(15);
};

struct BlockPlace {
  uint32_t rank = 0, lane = 0, channel = 0;
};

class HostCta {
 public:
  HostCta(HostWatch& watch, const BlockPlace& place, uint32_t threads)
      : watch_(watch), place_(place), threads_(threads) {}

  [[nodiscard]] uint32_t rank() const { return place_.rank; }
  [[nodiscard]] uint32_t lane() const { return place_.lane; }
  [[nodiscard]] uint32_t channel() const { return place_.channel; }
  [[nodiscard]] CombineArgs& board() { return board_; }

  template <typename Body>
  void Each(const Body& body) {
    for (uint32_t thread = 0; thread < threads_; ++thread) body(Grid{0, 1, thread, threads_});
  }
  void Sync() {}
  [[nodiscard]] bool Any(bool mine) const { return mine; }

  [[nodiscard]] uint64_t Acquire(const uint64_t* cell) const {
    return std::atomic_ref(*const_cast<uint64_t*>(cell)).load(std::memory_order_acquire);
  }
  void Release(uint64_t* cell, uint64_t count) const {
    std::atomic_ref(*cell).store(count, std::memory_order_release);
  }
  [[nodiscard]] uint64_t LoadWord(const uint64_t* word) const {
    return std::atomic_ref(*const_cast<uint64_t*>(word)).load(std::memory_order_relaxed);
  }
  void StoreWord(uint64_t* word, uint64_t value) const {
    std::atomic_ref(*word).store(value, std::memory_order_relaxed);
  }
  [[nodiscard]] bool GoOn(uint32_t looks) const {
    if (watch_.abort.load() != 0) return false;
    if (looks % 8 == 7) {
      if (std::chrono::steady_clock::now() > watch_.deadline) watch_.abort.store(1);
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    } else {
      std::this_thread::yield();
    }
    return true;
  }
  void Report(uint64_t where) const {
    uint64_t nowhere = 0;
    watch_.report.compare_exchange_strong(nowhere, where);
  }

 private:
  HostWatch& watch_;
  const BlockPlace place_;
  const uint32_t threads_;
  CombineArgs board_{};
};

/// A program with the memory of all its ranks.
class HostKernel {
 public:
  explicit HostKernel(KernelImage image) : image_(std::move(image)) {
    const uint64_t words = header().workspace_bytes / sizeof(uint64_t) + 16;
    for (uint32_t rank = 0; rank < header().ranks; ++rank) {
      // Aligned as a GPU's memory is.
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

  /// What block `block` does in `calls` calls. A call of a rank ends when all its blocks have
  /// ended, and the next one may begin while other ranks are still in this one.
  bool Run(uint32_t block, uint64_t calls, HostWatch& watch) {
    const BlockPlace place{block / (header().lanes * header().channels),
                           block / header().channels % header().lanes, block % header().channels};
    HostCta cta(watch, place, 1 + header().window_elements % 3 * 4);
    const KernelProgram program(header(), reinterpret_cast<const char*>(image_.data()));
    bool ok = true;
    for (uint64_t call = 0; call < calls; ++call) {
      KernelCall now = call_;
      now.call = call;
      const Instance instance{cta, program, now, ok};
      if (IsFloat(header().type)) {
        VisitFloats(header(), instance);
      } else if (header().scaled) {
        VisitScaled(header(), instance);
      } else {
        VisitNumbers(header(), instance);
      }
      ends_[place.rank]->arrive_and_wait();
    }
    return ok;
  }

 private:
  struct Instance {
    HostCta& cta;
    const KernelProgram& program;
    const KernelCall& call;
    bool& ok;
    template <typename E, typename Op>
    void Take(Op op) const {
      ok = RunKernelLane<E>(cta, program, call, op) && ok;
    }
  };

  const KernelImage image_;
  std::vector<std::unique_ptr<uint64_t[]>> workspaces_;
  std::vector<std::unique_ptr<std::barrier<>>> ends_;
  KernelCall call_{};
};

}  // namespace horoacc::cuda
