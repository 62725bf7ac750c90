// The least that an allreduce of P buffers costs on this machine's memory: every input byte is
// loaded once and every output byte is stored once, 2S bytes a rank, by all cores and without any
// waiting.
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr size_t kWidth = 16;
#else
constexpr size_t kWidth = 8;
#endif
typedef float Vector __attribute__((vector_size(kWidth * sizeof(float))));

// Buffers of a power of two apart would share the sets of every cache.
constexpr size_t kStagger = 4096 + 256;

struct Bound {
  char* memory = nullptr;
  size_t mapped = 0;
  size_t buffers = 0, bytes = 0, sets = 0;
  int threads = 1;

  float* Buffer(size_t set, size_t buffer) const {
    return reinterpret_cast<float*>(memory + (set * buffers + buffer) * (bytes + kStagger));
  }
};

void Store(float* to, Vector value) { *reinterpret_cast<Vector*>(to) = value; }

// Past the caches, if the processor can.
void Stream(float* to, Vector value) {
#if defined(__AVX512F__)
  _mm512_stream_ps(to, reinterpret_cast<__m512>(value));
#elif defined(__AVX2__)
  _mm256_stream_ps(to, reinterpret_cast<__m256>(value));
#else
  Store(to, value);
#endif
}

template <size_t P, void (*Put)(float*, Vector)>
void SumInPlace(float* const* buffers, size_t begin, size_t end) {
  for (size_t i = begin; i < end; i += kWidth) {
    Vector sum = *reinterpret_cast<const Vector*>(buffers[0] + i);
#pragma GCC unroll 8
    for (size_t p = 1; p < P; ++p) sum += *reinterpret_cast<const Vector*>(buffers[p] + i);
#pragma GCC unroll 8
    for (size_t p = 0; p < P; ++p) Put(buffers[p] + i, sum);
  }
}

template <size_t P>
void Work(const Bound& bound, bool stream, size_t first, size_t calls, int thread) {
  const size_t vectors = bound.bytes / sizeof(Vector);
  const size_t begin = vectors * thread / bound.threads * kWidth;
  const size_t end = vectors * (thread + 1) / bound.threads * kWidth;
  for (size_t call = 0; call < calls; ++call) {
    float* buffers[P];
    for (size_t p = 0; p < P; ++p) buffers[p] = bound.Buffer((first + call) % bound.sets, p);
    if (stream) {
      SumInPlace<P, Stream>(buffers, begin, end);
    } else {
      SumInPlace<P, Store>(buffers, begin, end);
    }
  }
#if defined(__AVX2__)
  if (stream) _mm_sfence();
#endif
}

// To one of the cores that this process may use: the scheduler may put two threads on one for a
// while.
void Bind(int thread) {
  cpu_set_t allowed;
  cpu_set_t one;
  CPU_ZERO(&one);
  if (sched_getaffinity(getpid(), sizeof allowed, &allowed) != 0) return;
  int skip = thread % CPU_COUNT(&allowed);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || skip-- > 0) continue;
    CPU_SET(core, &one);
    sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

void WorkOn(const Bound& bound, bool stream, size_t first, size_t calls, int thread) {
  switch (bound.buffers) {
    case 2:
      return Work<2>(bound, stream, first, calls, thread);
    case 4:
      return Work<4>(bound, stream, first, calls, thread);
    default:
      return Work<8>(bound, stream, first, calls, thread);
  }
}

}  // namespace

extern "C" {

// `buffers` is 2, 4 or 8; `bytes` a multiple of 64. NULL if there is no memory.
Bound* bound_create(size_t buffers, size_t bytes, size_t sets, int threads, int huge_pages) {
  auto* bound =
      new Bound{nullptr, (bytes + kStagger) * buffers * sets, buffers, bytes, sets, threads};
  void* memory =
      mmap(nullptr, bound->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    delete bound;
    return nullptr;
  }
  madvise(memory, bound->mapped, huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  std::memset(memory, 0, bound->mapped);
  bound->memory = static_cast<char*>(memory);
  return bound;
}

float* bound_buffer(const Bound* bound, size_t set, size_t buffer) {
  return bound->Buffer(set, buffer);
}

// Seconds for one call, of so many over the sets of buffers in turn, after `warm` others.
double bound_run(const Bound* bound, int stream, size_t first, size_t warm, size_t calls) {
  using Clock = std::chrono::steady_clock;
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  const auto prepare = [=, &ready](int thread) {
    Bind(thread);
    WorkOn(*bound, stream != 0, first, warm, thread);
    ready.fetch_add(1);
  };
  double seconds = 0;
  std::vector<std::jthread> threads;
  for (int thread = 1; thread < bound->threads; ++thread) {
    threads.emplace_back([=, &go] {
      prepare(thread);
      while (!go.load(std::memory_order_acquire)) std::this_thread::yield();
      WorkOn(*bound, stream != 0, first + warm, calls, thread);
    });
  }
  std::jthread leader([&, calls] {
    prepare(0);
    while (ready.load() < bound->threads) std::this_thread::yield();
    // Not after a barrier: nobody may have worked before the clock is read.
    const auto begin = Clock::now();
    go.store(true, std::memory_order_release);
    WorkOn(*bound, stream != 0, first + warm, calls, 0);
    threads.clear();
    seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  });
  leader.join();
  return seconds / static_cast<double>(calls);
}

void bound_destroy(Bound* bound) {
  munmap(bound->memory, bound->mapped);
  delete bound;
}

}  // extern "C"
