// What the modes assume of CUDA, a line for each: yes, or NO and why. Then what the arithmetic of
// docs/gpu.md guesses. Uses nothing but the plug-in, so that it runs on a played GPU, too.
//
//   probe LIBRARY
//
// PROBE_SECONDS: after which an assumption hangs; 8.
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/dtype.h"
#include "execute/cuda/cuda_plugin.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kPage = size_t{64} << 10;  // whole pages, on any machine
constexpr size_t kBlock = size_t{2} << 20;

[[noreturn]] void Fail(const std::string& why) {
  std::printf("NO   %s\n", why.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

/// A GPU through the plug-in, in a process of its own.
class Gpu {
 public:
  explicit Gpu(const char* library) {
    void* const loaded = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (loaded == nullptr) Fail(::dlerror());
    const auto entry =
        reinterpret_cast<ha_cuda_plugin_entry>(::dlsym(loaded, HA_CUDA_PLUGIN_SYMBOL));
    if (entry == nullptr) Fail("the library is no plug-in of this version");
    table_ = entry();
    if (table_->open(&self_, 0, &error_) != 0) Fail(error_.message);
    Call("a stream", table_->create_stream, &stream_);
  }

  template <typename Function, typename... Args>
  void Call(const char* what, Function function, Args... args) {
    if (function(self_, args..., &error_) != 0) Fail(std::string(what) + ": " + error_.message);
  }
  void Pin(void* memory) { Call("registering", table_->pin, memory, kPage); }
  void Write(uint32_t* word, uint32_t value) {
    Call("a stream's write", table_->write_words, stream_, &word, size_t{1}, value);
  }
  void WriteSome(uint32_t* words, uint32_t count) {
    std::vector<uint32_t*> each;
    for (uint32_t i = 0; i < count; ++i) each.push_back(words + i);
    Call("a stream's writes", table_->write_words, stream_, each.data(), each.size(), 1U);
  }
  void Await(uint32_t* word, uint32_t value) {
    Call("a stream's wait", table_->await_words, stream_, &word, size_t{1}, value);
  }
  void* Allocate(size_t bytes) {
    void* memory = nullptr;
    Call("memory", table_->allocate, bytes, &memory);
    return memory;
  }
  ha_cuda_handle Share(void* memory) {
    ha_cuda_handle handle{};
    Call("a handle", table_->share_memory, memory, &handle);
    return handle;
  }
  void* Open(const ha_cuda_handle& handle) {
    void* memory = nullptr;
    Call("opening", table_->open_memory, &handle, &memory);
    return memory;
  }
  void Put(void* to, uint64_t value) {
    Call("a copy", table_->copy, stream_, to, static_cast<const void*>(&value), sizeof value);
    Drain();
  }
  uint64_t Get(const void* from) {
    uint64_t value = 0;
    Call("a copy", table_->copy, stream_, static_cast<void*>(&value), from, sizeof value);
    Drain();
    return value;
  }
  void Pack(const char* from, char* to, size_t bytes, size_t count) {
    std::vector<ha_cuda_tensor> tensors;
    for (size_t i = 0; i < count; ++i) tensors.push_back({from + i * bytes, to + i * bytes, bytes});
    const ha_cuda_pack job{.tensors = tensors.data(),
                           .tensor_count = count,
                           .from_type = 0,
                           .to_type = 0,
                           .factor = 1,
                           .nonfinite = nullptr};
    Call("a launch", table_->pack, stream_, &job);
  }
  /// Sums of float32, of neighbouring blocks and in place.
  void Reduce(char* from, size_t count, size_t ranks) {
    std::vector<void*> places;
    for (size_t r = 0; r < ranks; ++r) places.push_back(from + r * 4 * count);
    const ha_cuda_reduce job{.sources = places.data(),
                             .destinations = places.data(),
                             .source_count = ranks,
                             .destination_count = ranks,
                             .count = count,
                             .type = static_cast<int>(horoacc::DType::kFloat32),
                             .op = static_cast<int>(horoacc::ReduceOp::kSum),
                             .pre = 1,
                             .post = 1,
                             .divisor = 1};
    Call("a launch", table_->reduce, stream_, &job);
  }
  /// Waits for the stream. A hang ends with the process.
  void Drain() {
    void* event = nullptr;
    Call("an event", table_->create_event, &event);
    Call("recording", table_->record, event, stream_);
    for (int done = 0; done == 0;) Call("asking", table_->is_done, event, &done);
    table_->destroy_event(self_, event);
  }

 private:
  const ha_cuda_plugin* table_ = nullptr;
  void* self_ = nullptr;
  void* stream_ = nullptr;
  ha_cuda_error error_{};
};

/// What two processes of an assumption share.
struct Shared {
  alignas(64) std::atomic<uint32_t> step{0};
  ha_cuda_handle handles[2]{};
  alignas(64) uint32_t words[1024]{};

  void Reach(uint32_t number) { step.store(number); }
  void Meet(uint32_t number) const {
    while (step.load() < number) std::this_thread::yield();
  }
};

Shared* NewShared() {
  const int file = ::memfd_create("probe", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, kPage) != 0) Fail("no memfd");
  void* const memory = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) Fail("no memory");
  return new (memory) Shared;
}
static_assert(sizeof(Shared) <= kPage);

/// Runs a body in a process of its own, which ends in time.
pid_t Begin(const std::function<void()>& body) {
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child != 0) return child;
  const char* const seconds = std::getenv("PROBE_SECONDS");
  ::alarm(seconds != nullptr ? static_cast<unsigned>(std::atoi(seconds)) : 8);
  body();
  std::fflush(stdout);
  std::_Exit(0);
}

bool Ended(pid_t child, const char* what) {
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) std::printf("NO   %s: it hangs\n", what);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool Check(const char* what, const std::function<void(Shared&)>& body,
           const std::function<void(Shared&)>& other = nullptr) {
  Shared* const shared = NewShared();
  std::printf("--   %s\n", what);
  const pid_t peer = other ? Begin([&] { other(*shared); }) : 0;
  const bool good = Ended(Begin([&] { body(*shared); }), what);
  if (peer > 0) ::kill(peer, SIGKILL);
  if (peer > 0) ::waitpid(peer, nullptr, 0);
  if (good) std::printf("yes  %s\n", what);
  ::munmap(shared, kPage);
  return good;
}

double Microseconds(int times, const std::function<void()>& body) {
  const auto begin = Clock::now();
  for (int i = 0; i < times; ++i) body();
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / times;
}

/// Calls in a row: the host's time of each, and that until the GPU is through, by their number.
void Say(const std::string& what, int calls, const std::function<void()>& call,
         const std::function<void()>& drain) {
  call();  // code is loaded at its first launch
  drain();
  double host = 0;
  const double whole = Microseconds(1, [&] {
    host = Microseconds(calls, call);
    drain();
  });
  std::printf(R"({"what": "%s", "us": %.2f, "host us": %.2f})"
              "\n",
              what.c_str(), whole / calls, host);
}

void Costs(const char* library) {
  Gpu gpu(library);
  Shared& shared = *NewShared();
  gpu.Pin(&shared);
  char* const block = static_cast<char*>(gpu.Allocate(2 * kBlock));
  const auto drain = [&] { gpu.Drain(); };
  Say("a call on a stream word", 100, [&] { gpu.Write(&shared.words[0], 1); }, drain);
  Say("a call on 7 stream words", 100, [&] { gpu.WriteSome(shared.words, 7); }, drain);
  for (const size_t tensors : {1U, 8U, 100U, 2000U}) {
    const auto pack = [&] { gpu.Pack(block, block + kBlock, 1024, tensors); };
    Say("a pack of " + std::to_string(tensors), 100, pack, drain);
  }
  for (const size_t ranks : {2U, 8U}) {
    const auto reduce = [&] { gpu.Reduce(block, 256, ranks); };
    Say("a reduction of " + std::to_string(ranks), 100, reduce, drain);
  }
  const auto seen = [&] {
    gpu.Pack(block, block + kBlock, 1024, 1);
    gpu.Drain();
  };
  Say("a launch until the host sees its end", 100, seen, [] {});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: probe LIBRARY\n");
    return 2;
  }
  const char* const library = argv[1];
  constexpr size_t kInside = 777;
  bool good = Check("a stream writes a word inside of registered shared memory", [&](Shared& at) {
    Gpu gpu(library);
    gpu.Pin(&at);
    gpu.Write(&at.words[kInside], 5);
    gpu.Drain();
    if (std::atomic_ref(at.words[kInside]).load() != 5) Fail("the host does not see it");
  });
  good &= Check("a stream waits for a word until the host writes it", [&](Shared& at) {
    Gpu gpu(library);
    gpu.Pin(&at);
    gpu.Await(&at.words[kInside], 7);
    gpu.Write(&at.words[0], 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (std::atomic_ref(at.words[0]).load() != 0) Fail("it does not wait");
    std::atomic_ref(at.words[kInside]).store(7);
    gpu.Drain();
  });
  good &= Check(
      "a stream waits for a word that another process's stream writes, on one GPU",
      [&](Shared& at) {
        Gpu gpu(library);
        gpu.Pin(&at);
        gpu.Await(&at.words[kInside], 3);
        at.Reach(1);
        gpu.Drain();
      },
      [&](Shared& at) {
        Gpu gpu(library);
        gpu.Pin(&at);
        at.Meet(1);
        gpu.Write(&at.words[kInside], 3);
        gpu.Drain();
        ::pause();
      });
  const auto exports = [&](size_t bytes) {
    return [&library, bytes](Shared& at) {
      Gpu gpu(library);
      for (uint64_t k = 0; k < 2; ++k) {
        void* const memory = gpu.Allocate(bytes);
        gpu.Put(memory, 100 + k);
        at.handles[k] = gpu.Share(memory);
      }
      at.Reach(1);
      ::pause();
    };
  };
  const auto imports = [&](Shared& at) {
    Gpu gpu(library);
    at.Meet(1);
    for (uint64_t k = 0; k < 2; ++k) {
      if (gpu.Get(gpu.Open(at.handles[k])) != 100 + k) Fail("the wrong memory");
    }
  };
  good &=
      Check("two blocks of 2 MiB of another process are open at once", imports, exports(kBlock));
  // Shared buffers are rounded up to 2 MiB, so this one may fail.
  static_cast<void>(
      Check("two blocks of 64 KiB are, too (no mode needs it)", imports, exports(kPage)));
  pid_t exporter = 0;
  Shared* const at = NewShared();
  exporter = Begin([&] { exports(kBlock)(*at); });
  good &= Check("memory of a process that was killed can be read until it is closed", [&](Shared&) {
    Gpu gpu(library);
    at->Meet(1);
    const void* const memory = gpu.Open(at->handles[1]);
    ::kill(exporter, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    if (gpu.Get(memory) != 101) Fail("it has changed");
  });
  ::kill(exporter, SIGKILL);
  ::waitpid(exporter, nullptr, 0);
  good &= Ended(Begin([&] { Costs(library); }), "costs");
  return good ? 0 : 1;
}
