// One rank gets no memory, thread, mapping or write at some call, anywhere: no rank crashes or
// hangs, and no result is wrong. The calls are those of the core; the C library's own are not met.
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <random>
#include <string>

#include "support/seeds.h"
#include "support/swept_jobs.h"

namespace horoacc::testing {
namespace {

enum class What : uint8_t { kNew, kThread, kMap, kWrite };
constexpr const char* kNames[] = {"new", "pthread_create", "mmap", "write"};
enum class Phase : uint8_t { kInit, kCalls, kShutdown };
constexpr const char* kPhases[] = {"init", "calls", "shutdown"};

/// Of this process; a rank arms it.
struct Injection {
  std::atomic<bool> armed{false};
  What what = What::kNew;
  uint64_t nth = 0;  ///< 0: none fails
  std::atomic<uint64_t> came{0};
};
Injection injection;

bool Fails(What what) {
  if (!injection.armed.load(std::memory_order_acquire) || injection.what != what) return false;
  return injection.came.fetch_add(1) + 1 == injection.nth;
}

template <typename Function>
Function Real(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace
}  // namespace horoacc::testing

using horoacc::testing::Fails;
using horoacc::testing::What;

void* operator new(size_t bytes) {
  void* const memory = Fails(What::kNew) ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
// A sanitizer has one of its own, which does not call the other.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return Fails(What::kNew) ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

#pragma GCC visibility push(default)
extern "C" {

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                   void* argument) noexcept {
  static const auto real = horoacc::testing::Real<decltype(&::pthread_create)>("pthread_create");
  return Fails(What::kThread) ? EAGAIN : real(thread, attributes, body, argument);
}

void* mmap(void* place, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  static const auto real = horoacc::testing::Real<decltype(&::mmap)>("mmap");
  if (!Fails(What::kMap)) return real(place, bytes, protection, flags, fd, offset);
  errno = ENOMEM;
  return MAP_FAILED;
}

ssize_t write(int fd, const void* data, size_t bytes) {
  static const auto real = horoacc::testing::Real<decltype(&::write)>("write");
  if (!Fails(What::kWrite)) return real(fd, data, bytes);
  errno = ENOSPC;
  return -1;
}

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  static const auto real = horoacc::testing::Real<decltype(&::sendmsg)>("sendmsg");
  if (!Fails(What::kWrite)) return real(fd, message, flags);
  errno = ENOBUFS;
  return -1;
}

ssize_t send(int fd, const void* data, size_t bytes, int flags) {
  static const auto real = horoacc::testing::Real<decltype(&::send)>("send");
  if (!Fails(What::kWrite)) return real(fd, data, bytes, flags);
  errno = ENOBUFS;
  return -1;
}

}  // extern "C"
#pragma GCC visibility pop

namespace horoacc::testing {
namespace {

struct Order {
  What what;
  Phase phase;
  uint64_t nth;
  int size;
  bool messages;

  [[nodiscard]] int victim() const { return size - 1; }
  [[nodiscard]] std::string name() const {
    return std::string(kNames[static_cast<int>(what)]) + " number " + std::to_string(nth) + " of " +
           kPhases[static_cast<int>(phase)] + ", " + std::to_string(size) +
           (messages ? " hosts" : " ranks on one host");
  }
};

/// Arms the injection for a part of a rank's life.
class Armed {
 public:
  Armed(const Order& order, int rank, Phase phase)
      : armed_(rank == order.victim() && phase == order.phase) {
    if (!armed_) return;
    injection.what = order.what;
    injection.nth = order.nth;
    injection.armed.store(true, std::memory_order_release);
  }
  ~Armed() {
    if (armed_) injection.armed.store(false);
  }
  Armed(const Armed&) = delete;
  Armed& operator=(const Armed&) = delete;

 private:
  const bool armed_;
};

void CheckNames(const Order& order, const ha_error& error, bool own) {
  // A connection that ends has two ends; of ranks that meet, others may be told by a rank 0 that
  // leaves for the same reason. What is thrown before a call is the engine's has no rank.
  const bool anybody = order.what == What::kWrite ||
                       (order.phase == Phase::kInit && order.messages) ||
                       (own && error.culprit < 0);
  if (error.kind != HA_OK && (anybody || error.culprit == order.victim())) return;
  check::Fail(__FILE__, __LINE__,
              order.name() + ": kind " + std::to_string(error.kind) + ", culprit " +
                  std::to_string(error.culprit) + ", '" + error.message + "'");
}

/// Nothing catches the exception: where it was thrown.
[[noreturn]] void ShowWhere() {
  void* frames[64];
  ::backtrace_symbols_fd(frames, ::backtrace(frames, 64), 2);
  std::abort();
}

int Run(const Job& job, const Order& order, int rank) {
  std::set_terminate(&ShowWhere);
  ::signal(SIGSEGV, [](int) { ShowWhere(); });
  OwnedEngine engine;
  const Pairs settings = SweepSettings(order.messages, "20");
  ha_error start{};
  {
    const Armed armed(order, rank, Phase::kInit);
    try {
      start = job.MakeEngine(rank, settings, engine);
    } catch (const std::bad_alloc&) {  // of this test's own text
      return kTold;
    }
  }
  if (!engine) {
    CheckNames(order, start, rank == order.victim());
    return kTold;
  }
  std::optional<ha_error> error;
  {
    const Armed armed(order, rank, Phase::kCalls);
    try {
      error = MakeCalls(engine.get(), rank, order.size, order.victim());
    } catch (const std::bad_alloc&) {
      return kTold;
    }
  }
  if (error) CheckNames(order, *error, rank == order.victim());
  const Armed armed(order, rank, Phase::kShutdown);
  const int64_t left = NowNs();
  const int ended = ha_engine_shutdown(engine.get(), nullptr);
  CHECK(NowNs() - left < 10 * kSecond);
  if (!error && rank != order.victim()) CHECK_EQ(ended, HA_OK);
  return error ? kTold : kWell;
}

struct RunningJob {
  explicit RunningJob(const Order& ordered) : order(ordered), job(ordered.size) {
    job.Start([this](int rank) { return Run(job, order, rank); });
  }
  void Finish() {
    for (int rank = 0; rank < order.size; ++rank) {
      const int code = job.Await(rank);
      if (code == kWell || code == kTold) continue;
      std::fprintf(stderr, "%s: rank %d ended with %d\n", order.name().c_str(), rank, code);
      failed = true;
    }
  }
  const Order order;
  Job job;
  static inline bool failed = false;
};

/// How many of these calls a rank makes where none fails.
uint64_t CountOf(Order order) {
  order.nth = 0;
  Job job(order.size);
  int told[2];
  CHECK_EQ(::pipe2(told, O_CLOEXEC), 0);
  job.Start([&](int rank) {
    const int code = Run(job, order, rank);
    const uint64_t came = injection.came;
    if (rank == order.victim()) CHECK_EQ(::write(told[1], &came, sizeof came), sizeof came);
    return code;
  });
  job.CheckEnds();
  uint64_t came = 0;
  CHECK_EQ(::read(told[0], &came, sizeof came), sizeof came);
  for (const int end : told) ::close(end);
  return came;
}

void Sweep(What what) {
  constexpr uint64_t kMost = 24;  // of a phase; by chance where there are more
  std::mt19937_64 random(check::SeedOfTheDay());
  JobsAtOnce<RunningJob> jobs(24);  // some wait for the limit of the start
  for (const bool messages : {false, true}) {
    const int size = messages ? 3 : 2;
    for (const Phase phase : {Phase::kInit, Phase::kCalls, Phase::kShutdown}) {
      const uint64_t count = CountOf({what, phase, 0, size, messages});
      std::printf("%s: %s of %d: %llu\n", kPhases[static_cast<int>(phase)],
                  kNames[static_cast<int>(what)], size, static_cast<unsigned long long>(count));
      std::fflush(stdout);
      if (phase == Phase::kInit) CHECK(count > 0);
      for (uint64_t k = 0; k < std::min(count, kMost); ++k) {
        const uint64_t nth = count <= kMost ? k : k * count / kMost + random() % (count / kMost);
        jobs.Start(Order{what, phase, nth + 1, size, messages});
      }
    }
  }
  jobs.FinishAll();
  CHECK(!RunningJob::failed);
}

TEST(no_memory) { Sweep(What::kNew); }
TEST(no_thread) { Sweep(What::kThread); }
TEST(no_mapping) { Sweep(What::kMap); }
TEST(no_write) { Sweep(What::kWrite); }

}  // namespace
}  // namespace horoacc::testing
