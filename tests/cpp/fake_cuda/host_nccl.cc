// NCCL played by the host, for tests: a library with NCCL's names that reduces the fake GPU's
// memory (fake_cuda.h), among threads and processes of one machine. Its calls return before they
// are done, as those of a communicator that does not block, and its sums have an order of their
// own.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "execute/cuda/nccl/nccl_calls.h"
#include "execute/kernels/half.h"
#include "fake_cuda/fake_cuda.h"

namespace {

using horoacc::cuda::NcclConfig;
using horoacc::cuda::NcclId;

constexpr int kSuccess = 0;
constexpr int kInvalidUsage = 5;
constexpr int kInProgress = 7;
constexpr uint32_t kMostRanks = 8;
constexpr size_t kPart = size_t{64} << 10;  // bytes of a message that are reduced at a time

/// Shared by the ranks of a communicator, in a file of the rank that made the id.
struct Rendezvous {
  std::atomic<uint32_t> joined;
  std::atomic<uint64_t> written[kMostRanks];  ///< parts that a rank has put into its place
  std::atomic<uint64_t> taken[kMostRanks];    ///< parts of which it needs nothing any more
  std::byte places[kMostRanks][kPart];
};

/// Never freed: a stream may still come to it.
struct Comm {
  Rendezvous* rendezvous = nullptr;
  uint32_t rank = 0;
  uint32_t ranks = 0;
  uint64_t parts = 0;  ///< the stream's
  std::atomic<int> launching{0};
  std::atomic<bool> aborted{false};
  std::atomic<int> error{kSuccess};
};

struct Call {
  Comm* comm;
  const void* from;
  void* to;
  size_t count;
  int type, op;
  void* stream;
};

struct Group {
  int depth = 0;
  std::vector<Call> calls;
};
thread_local Group group;
thread_local std::string last_error;

int Fail(int code, const char* why) {
  last_error = why;
  return code;
}

struct Half {
  static float Wide(uint16_t x) { return horoacc::HalfToFloat(x); }
  static uint16_t Round(float x) { return horoacc::FloatToHalf(x); }
};
struct BHalf {
  static float Wide(uint16_t x) { return horoacc::BFloat16ToFloat(x); }
  static uint16_t Round(float x) { return horoacc::FloatToBFloat16(x); }
};

template <typename T>
T Combine(T a, T b, int op) {
  if (op == 0) return static_cast<T>(a + b);
  if (op == 1) return static_cast<T>(a * b);
  return op == 2 ? std::max(a, b) : std::min(a, b);
}

// Folds from the last rank to the first, and rounds every time.
template <typename T>
void Fold(const Rendezvous& rendezvous, uint32_t ranks, size_t count, int op, std::byte* result) {
  auto* const sum = reinterpret_cast<T*>(result);
  std::memcpy(sum, rendezvous.places[ranks - 1], count * sizeof(T));
  for (uint32_t r = ranks - 1; r-- > 0;) {
    const auto* const other = reinterpret_cast<const T*>(rendezvous.places[r]);
    for (size_t i = 0; i < count; ++i) sum[i] = Combine(sum[i], other[i], op);
  }
}

template <typename H>
void FoldHalves(const Rendezvous& rendezvous, uint32_t ranks, size_t count, int op,
                std::byte* result) {
  auto* const sum = reinterpret_cast<uint16_t*>(result);
  std::memcpy(sum, rendezvous.places[ranks - 1], count * 2);
  for (uint32_t r = ranks - 1; r-- > 0;) {
    const auto* const other = reinterpret_cast<const uint16_t*>(rendezvous.places[r]);
    for (size_t i = 0; i < count; ++i)
      sum[i] = H::Round(Combine(H::Wide(sum[i]), H::Wide(other[i]), op));
  }
}

struct Kind {
  size_t bytes;
  void (*fold)(const Rendezvous&, uint32_t, size_t, int, std::byte*);
};

Kind KindOf(int type) {
  switch (type) {
    case 0:
      return {1, Fold<int8_t>};
    case 1:
      return {1, Fold<uint8_t>};
    case 2:
      return {4, Fold<int32_t>};
    case 4:
      return {8, Fold<int64_t>};
    case 6:
      return {2, FoldHalves<Half>};
    case 7:
      return {4, Fold<float>};
    case 8:
      return {8, Fold<double>};
    case 9:
      return {2, FoldHalves<BHalf>};
    default:
      return {0, nullptr};
  }
}

// A kernel that waits for those of the other ranks, until it is aborted.
bool Await(const Comm& comm, const std::atomic<uint64_t>* counts, uint64_t number) {
  fake_cuda_count_wait(1);
  bool all = false;
  while (!all && !comm.aborted) {
    all = true;
    for (uint32_t r = 0; r < comm.ranks; ++r) all = all && counts[r].load() >= number;
    if (!all) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  fake_cuda_count_wait(-1);
  return all;
}

void Run(const Call& call) {
  Comm& comm = *call.comm;
  Rendezvous& rendezvous = *comm.rendezvous;
  const Kind kind = KindOf(call.type);
  const auto* const from = static_cast<const std::byte*>(fake_cuda_real(call.from));
  auto* const to = static_cast<std::byte*>(fake_cuda_real(call.to));
  for (size_t at = 0; at < call.count * kind.bytes; at += kPart) {
    const size_t bytes = std::min(kPart, call.count * kind.bytes - at);
    const uint64_t number = ++comm.parts;
    std::memcpy(rendezvous.places[comm.rank], from + at, bytes);
    rendezvous.written[comm.rank].store(number);
    if (!Await(comm, rendezvous.written, number)) return;
    std::byte result[kPart];
    kind.fold(rendezvous, comm.ranks, bytes / kind.bytes, call.op, result);
    rendezvous.taken[comm.rank].store(number);
    if (!Await(comm, rendezvous.taken, number)) return;
    std::memcpy(to + at, result, bytes);
  }
}

void Launch(const std::vector<Call>& calls) {
  for (const Call& call : calls) FakeCudaLaunch(call.stream, [call] { Run(call); });
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int ncclGetVersion(int* version) {
  const char* const given = std::getenv("HOST_NCCL_VERSION");
  *version = given != nullptr ? std::atoi(given) : 22707;
  return kSuccess;
}

const char* ncclGetErrorString(int code) {
  return code == kInvalidUsage ? "invalid usage" : "no such thing";
}

const char* ncclGetLastError(void*) { return last_error.c_str(); }

int ncclGetUniqueId(NcclId* id) {
  const int file = memfd_create("host_nccl", 0);
  if (file < 0 || ftruncate(file, sizeof(Rendezvous)) != 0) std::abort();
  std::snprintf(id->bytes, sizeof id->bytes, "/proc/%d/fd/%d", static_cast<int>(getpid()), file);
  return kSuccess;
}

int ncclCommInitRankConfig(void** made, int ranks, NcclId id, int rank, NcclConfig* config) {
  if (config->magic != 0xcafebeef || config->blocking != 0) std::abort();
  if (fake_cuda_current() < 0) return Fail(kInvalidUsage, "no GPU is current (host)");
  const char* const refuses = std::getenv("HOST_NCCL_REFUSES");
  if (refuses != nullptr && std::atoi(refuses) == rank)
    return Fail(kInvalidUsage, "duplicate GPU (host)");
  const int file = open(id.bytes, O_RDWR | O_CLOEXEC);
  if (file < 0 || ranks > static_cast<int>(kMostRanks)) return Fail(kInvalidUsage, "no such id");
  void* const seen = mmap(nullptr, sizeof(Rendezvous), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  // None is ever freed: its operations may still be on their way.
  static std::mutex mutex;
  static auto& comms = *new std::deque<Comm>;
  const std::lock_guard lock(mutex);
  auto* const comm = &comms.emplace_back();
  comm->rendezvous = static_cast<Rendezvous*>(seen);
  comm->rank = static_cast<uint32_t>(rank);
  comm->ranks = static_cast<uint32_t>(ranks);
  comm->rendezvous->joined.fetch_add(1);
  *made = comm;
  return kInProgress;
}

int ncclCommInitAll(void**, int, const int*) { return Fail(kInvalidUsage, "not here (host)"); }

int ncclCommGetAsyncError(void* given, int* error) {
  const auto& comm = *static_cast<Comm*>(given);
  const bool ready = comm.rendezvous->joined >= comm.ranks && comm.launching == 0;
  *error = ready ? kSuccess : kInProgress;
  return kSuccess;
}

int ncclCommAbort(void* given) {
  static_cast<Comm*>(given)->aborted = true;
  return kSuccess;
}

int ncclCommDestroy(void*) { return kSuccess; }

int ncclGroupStart() {
  ++group.depth;
  return kSuccess;
}

int ncclAllReduce(const void* from, void* to, size_t count, int type, int op, void* comm,
                  void* stream) {
  if (KindOf(type).fold == nullptr || op < 0 || op > 3) return Fail(kInvalidUsage, "no such type");
  if (group.depth == 0) return Fail(kInvalidUsage, "outside of a group (host)");
  group.calls.push_back({static_cast<Comm*>(comm), from, to, count, type, op, stream});
  return kInProgress;
}

// Launched later, by another thread, as the first call of a communicator that does not block is.
int ncclGroupEnd() {
  if (--group.depth > 0 || group.calls.empty()) return kSuccess;
  Comm* const comm = group.calls.front().comm;
  if (comm->launching.fetch_add(1) != 0) return Fail(kInvalidUsage, "a call is pending (host)");
  std::thread([calls = std::exchange(group.calls, {}), comm] {
    std::this_thread::sleep_for(std::chrono::microseconds(300));
    Launch(calls);
    comm->launching.fetch_sub(1);
  }).detach();
  return kInProgress;
}

}  // extern "C"
#pragma GCC visibility pop
