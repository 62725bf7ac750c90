#pragma once
// Blocks of a persistent kernel, played by threads of the host: one thread plays all threads of a
// block, one after the other. The interface is in execute/cuda/persistent/kernel_wait.h.
#include <atomic>
#include <chrono>
#include <thread>

#include "execute/cuda/persistent/kernel_instance.h"

namespace horoacc::cuda {

/// Read by all blocks of a job while they wait.
struct HostWatch {
  std::atomic<uint32_t> abort{0};
  std::atomic<uint64_t> report{0};
  uint32_t* host_abort = nullptr;  ///< the launching process's, if there is one
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
  [[nodiscard]] CombineArgs& combine_args() { return args_; }

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
    if (watch_.host_abort && std::atomic_ref(*watch_.host_abort).load() != 0) return false;
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
  CombineArgs args_{};
};

/// The visitor for kernel_instance.h.
struct HostInstance {
  HostCta& cta;
  const KernelProgram& program;
  const KernelCall& call;
  bool& ok;
  template <typename E, typename Op>
  void Take(Op op) const {
    ok = RunKernelLane<E>(cta, program, call, op) && ok;
  }
};

/// One block's part of one call. False: it was given up.
inline bool RunBlock(HostCta& cta, const KernelProgram& program, const KernelCall& call) {
  bool ok = true;
  const HostInstance instance{cta, program, call, ok};
  const KernelHeader& header = program.header();
  if (IsFloat(header.type)) {
    VisitFloats(header, instance);
  } else if (header.scaled) {
    VisitScaled(header, instance);
  } else {
    VisitNumbers(header, instance);
  }
  return ok;
}

}  // namespace horoacc::cuda
