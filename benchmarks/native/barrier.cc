// A barrier of processes in a shared file: the least that ranks in lockstep cost each other.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/pause.h"

namespace {

struct Barrier {
  std::atomic<uint32_t> arrived;
  alignas(64) std::atomic<uint32_t> turn;
};
constexpr int kTriesOnCore = 2000;  // some 50 us
constexpr std::chrono::seconds kLimit{60};

}  // namespace

extern "C" {

// The file is of zeros, and of a page. Null: it cannot be mapped.
void* barrier_open(const char* path) {
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  void* const mapped = mmap(nullptr, sizeof(Barrier), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  return mapped == MAP_FAILED ? nullptr : mapped;
}

// 0 once all ranks are here; 1: they did not come in time.
int barrier_meet(void* opened, uint32_t ranks) {
  Barrier& barrier = *static_cast<Barrier*>(opened);
  const uint32_t turn = barrier.turn.load(std::memory_order_relaxed);
  if (barrier.arrived.fetch_add(1) + 1 == ranks) {
    barrier.arrived.store(0, std::memory_order_relaxed);
    barrier.turn.store(turn + 1, std::memory_order_release);
    return 0;
  }
  const auto limit = std::chrono::steady_clock::now() + kLimit;
  for (int tries = 0; barrier.turn.load(std::memory_order_acquire) == turn; ++tries) {
    if (tries < kTriesOnCore) {
      horoacc::Pause();
      continue;
    }
    sched_yield();
    if (std::chrono::steady_clock::now() > limit) return 1;
  }
  return 0;
}
}
