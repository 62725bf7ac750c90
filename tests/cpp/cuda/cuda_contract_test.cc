// The plug-in's host code on a mock of CUDA that forbids what CUDA forbids: what it leaves behind
// on the caller's thread, in the caller's captures and on the GPU, and what any failing call does.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "base/dtype.h"
#include "execute/cuda/cuda_plugin.h"
#include "mock_cuda/mock_cuda.h"
#include "mock_cuda/mock_kernels.h"
#include "support/check.h"

extern "C" const ha_cuda_plugin* horoacc_cuda_plugin_v8();

namespace {

using namespace horoacc;

constexpr size_t kPage = 4096;
constexpr size_t kShare = size_t{2} << 20;
constexpr size_t kMany = 150;  // tensors of a pack that needs a table

const ha_cuda_plugin& Calls() { return *horoacc_cuda_plugin_v8(); }

/// After these no function fails: they give something back, or there is another way.
bool IsTolerated(const std::string& call) {
  constexpr const char* kCalls[] = {"cudaFree",
                                    "cudaFreeHost",
                                    "cudaHostUnregister",
                                    "cudaIpcCloseMemHandle",
                                    "cudaEventDestroy",
                                    "cudaStreamDestroy",
                                    "cudaDeviceSynchronize",
                                    "cudaDeviceGetAttribute",
                                    "cudaThreadExchangeStreamCaptureMode",
                                    "cudaGetDriverEntryPoint",
                                    "cudaGetDriverEntryPointByVersion",
                                    "cuDevicePrimaryCtxGetState",
                                    "cudaGetDevice",
                                    "cudaSetDevice"};
  return std::ranges::find(kCalls, call) != std::end(kCalls);
}

/// These stand in the way of giving the thread back as it was.
bool KeepsThread(const std::string& call) {
  return call == "cudaSetDevice" || call == "cudaThreadExchangeStreamCaptureMode" ||
         call == "cuDevicePrimaryCtxGetState" || call.starts_with("cudaGetDriverEntryPoint");
}

/// Pages of the host.
class Pages {
 public:
  explicit Pages(size_t count) : bytes_(count * kPage), at_(std::aligned_alloc(kPage, bytes_)) {
    std::memset(at_, 0, bytes_);
  }
  ~Pages() { std::free(at_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  [[nodiscard]] size_t bytes() const { return bytes_; }
  [[nodiscard]] void* at() const { return at_; }
  [[nodiscard]] uint32_t* word(size_t index) const { return static_cast<uint32_t*>(at_) + index; }

 private:
  const size_t bytes_;
  void* const at_;
};

/// An opened plug-in, which looks at the caller's thread after each call.
class Plugin {
 public:
  explicit Plugin(int device) {
    const Thread before;
    if (Calls().open(&self_, device, &error_) != 0) Note();
    before.Expect();
  }
  ~Plugin() {
    const Thread before;
    if (self_ != nullptr) Calls().close(self_);
    before.Expect();
  }
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  [[nodiscard]] bool is_open() const { return self_ != nullptr; }
  [[nodiscard]] const std::string& message() const { return message_; }
  [[nodiscard]] int failures() const { return failures_; }

  template <typename Function, typename... Args>
  bool Call(Function ha_cuda_plugin::* function, Args... args) {
    const Thread before;
    const bool good = (Calls().*function)(self_, args..., &error_) == 0;
    if (!good) Note();
    before.Expect();
    return good;
  }
  void Drop(void (*ha_cuda_plugin::*function)(void*, void*), void* what) {
    const Thread before;
    (Calls().*function)(self_, what);
    before.Expect();
  }

 private:
  /// What the caller finds on its thread must be what it left there.
  struct Thread {
    int device = mock::Current();
    cudaError_t last = mock::LastError();
    void Expect() const {
      // A call that failed clears the last error, whoever's it was.
      CHECK(mock::LastError() == last || mock::LastError() == cudaSuccess);
      if (KeepsThread(mock::FailedCall()) || mock::IsLost()) return;
      CHECK(!mock::IsRelaxed());
      // To make a GPU current again that the process does not use would begin to use it.
      if (mock::HasContext(device)) CHECK_EQ(mock::Current(), device);
    }
  };
  void Note() {
    ++failures_;
    message_ = error_.message;
    CHECK(!message_.empty());
  }

  void* self_ = nullptr;
  ha_cuda_error error_{};
  std::string message_;
  int failures_ = 0;
};

/// A memory of the GPU, as the engine has it.
class Memory {
 public:
  Memory(Plugin& plugin, size_t bytes) : plugin_(plugin) {
    plugin_.Call(&ha_cuda_plugin::allocate, bytes, &at_);
  }
  ~Memory() {
    if (at_ != nullptr) plugin_.Drop(&ha_cuda_plugin::deallocate, at_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  [[nodiscard]] void* at() const { return at_; }
  [[nodiscard]] std::byte* at(size_t offset) const { return static_cast<std::byte*>(at_) + offset; }
  [[nodiscard]] int32_t number(size_t index) const {
    return static_cast<int32_t*>(mock::BytesAt(at_))[index];
  }

 private:
  Plugin& plugin_;
  void* at_ = nullptr;
};

bool Pack(Plugin& plugin, void* stream, const std::vector<ha_cuda_tensor>& tensors) {
  const ha_cuda_pack job{tensors.data(),
                         tensors.size(),
                         static_cast<int>(DType::kUInt8),
                         static_cast<int>(DType::kUInt8),
                         1,
                         nullptr};
  return plugin.Call(&ha_cuda_plugin::pack, stream, &job);
}

bool Add(Plugin& plugin, void* stream, const Memory& one, const Memory& other, size_t count) {
  const void* const sources[] = {one.at(), other.at()};
  void* const destinations[] = {other.at()};
  const ha_cuda_reduce job{sources,
                           destinations,
                           2,
                           1,
                           count,
                           static_cast<int>(DType::kInt32),
                           static_cast<int>(ReduceOp::kSum),
                           1,
                           1,
                           1};
  return plugin.Call(&ha_cuda_plugin::reduce, stream, &job);
}

/// Products of one source with itself, into pinned memory.
bool Square(Plugin& plugin, void* stream, const Memory& from, void* sums) {
  const void* const source = from.at();
  const ha_cuda_adasum job{&source, 1,      100, static_cast<int>(DType::kFloat32),
                           0,       0,      1,   static_cast<double*>(sums),
                           nullptr, nullptr};
  return plugin.Call(&ha_cuda_plugin::adasum, stream, &job);
}

bool Write(Plugin& plugin, void* stream, const std::vector<uint32_t*>& words, uint32_t value) {
  return plugin.Call(&ha_cuda_plugin::write_words, stream, words.data(), words.size(), value);
}

bool Await(Plugin& plugin, void* stream, const std::vector<uint32_t*>& words, uint32_t value) {
  return plugin.Call(&ha_cuda_plugin::await_words, stream, words.data(), words.size(), value);
}

/// One byte each of `from`, from `first` on, to the same place of `to`.
std::vector<ha_cuda_tensor> Bytes(const Memory& from, const Memory& to, size_t first,
                                  size_t count) {
  std::vector<ha_cuda_tensor> tensors;
  for (size_t i = first; i < first + count; ++i) tensors.push_back({from.at(i), to.at(i), 1});
  return tensors;
}

/// Packs with tables, more than there are tables: none is written while the GPU may read it.
bool PackMany(Plugin& plugin, void* stream, const Memory& from, const Memory& to) {
  bool good = true;
  for (size_t pack = 0; pack < 18; ++pack)
    good &= Pack(plugin, stream, Bytes(from, to, pack * kMany, kMany));
  return good;
}

/// Every function of the contract, as the engine calls them: whatever fails, the engine gives back
/// what it has. Without failures, the results are looked at.
void UseAll(int device) {
  Pages pages(2);
  std::memset(pages.at(), 1, kPage);
  {
    Plugin plugin(device);
    if (plugin.is_open()) {
      ha_cuda_traits traits{};
      plugin.Call(&ha_cuda_plugin::traits, &traits);
      void* stream = nullptr;
      void* event = nullptr;
      plugin.Call(&ha_cuda_plugin::create_stream, &stream);
      plugin.Call(&ha_cuda_plugin::create_event, &event);
      const bool pinned = plugin.Call(&ha_cuda_plugin::pin, pages.at(), pages.bytes());
      {
        const Memory a(plugin, kShare);
        const Memory b(plugin, kShare);
        if (stream != nullptr && event != nullptr && a.at() != nullptr && b.at() != nullptr) {
          plugin.Call(&ha_cuda_plugin::copy, stream, a.at(), static_cast<const void*>(pages.at()),
                      kPage);
          plugin.Call(&ha_cuda_plugin::zero, stream, b.at(), kShare);
          Add(plugin, stream, a, b, 100);
          Pack(plugin, stream, Bytes(a, b, 400, 3));
          PackMany(plugin, stream, a, b);
          if (plugin.Call(&ha_cuda_plugin::record, event, stream)) {
            int done = 1;
            plugin.Call(&ha_cuda_plugin::is_done, event, &done);
            plugin.Call(&ha_cuda_plugin::wait, stream, event);
          }
          const bool words = pinned && Write(plugin, stream, {pages.word(1500)}, 5U) &&
                             Await(plugin, stream, {pages.word(1500)}, 5U);
          const bool squared = pinned && Square(plugin, stream, a, pages.word(1400));
          ha_cuda_program program{};
          program.watch = reinterpret_cast<ha_cuda_watch*>(pages.word(1600));
          const bool ran = pinned && plugin.Call(&ha_cuda_plugin::run_program, stream,
                                                 static_cast<const ha_cuda_program*>(&program));
          ha_cuda_handle handle{};
          plugin.Call(&ha_cuda_plugin::share_memory, a.at(), &handle);
          const cudaIpcMemHandle_t foreign = mock::ForeignMemory(kShare);
          std::memcpy(handle.bytes, &foreign, sizeof foreign);
          void* opened = nullptr;
          if (plugin.Call(&ha_cuda_plugin::open_memory, static_cast<const ha_cuda_handle*>(&handle),
                          &opened))
            plugin.Drop(&ha_cuda_plugin::close_memory, opened);
          mock::RunStreams();
          if (plugin.failures() == 0) {
            CHECK(words && squared && ran);
            CHECK_EQ(*reinterpret_cast<double*>(pages.word(1400)), 1.0);
            CHECK_EQ(b.number(50), 0x01010101);
            CHECK_EQ(b.number(99), 0x01010101);
            CHECK_EQ(b.number(2699 / 4), 0x01010101);
            CHECK_EQ(*pages.word(1500), 5U);
            CHECK_EQ(program.watch->report, 7U);
          }
        }
      }
      const auto nothing = [](void*) {};
      plugin.Call(&ha_cuda_plugin::run_on_device, static_cast<void (*)(void*)>(nothing),
                  static_cast<void*>(nullptr));
      if (event != nullptr) plugin.Drop(&ha_cuda_plugin::destroy_event, event);
      if (pinned) plugin.Drop(&ha_cuda_plugin::unpin, pages.at());
    }
    const std::string failed = mock::FailedCall();
    if (failed.empty()) {
      CHECK_EQ(plugin.message(), "");
    } else if (!mock::IsLost()) {
      CHECK(plugin.failures() <= 1);
      CHECK(plugin.failures() == 1 || IsTolerated(failed));
      const bool told = plugin.message().find("(mock)") != std::string::npos ||
                        plugin.message().find("this driver has no") != std::string::npos ||
                        plugin.message().find(failed) != std::string::npos;
      if (!told && plugin.failures() != 0)
        check::Fail(__FILE__, __LINE__, failed + ": " + plugin.message());
    }
  }
  for (const std::string& leak : mock::Leaks()) check::Fail(__FILE__, __LINE__, "kept: " + leak);
}

/// A process of its own, since the plug-in looks once for the driver's calls. Its exit status.
template <typename Body>
int InChild(const Body& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(60);  // a call that never returns ends the child
    body();
    std::_Exit(0);
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// Lets each call of UseAll fail in turn; `fail` is told its number.
void FailEach(void (*fail)(int)) {
  constexpr int kNothingFailed = 42;
  int number = 0;
  for (int outcome = 0; outcome == 0;) {
    outcome = InChild([&] {
      fail(number + 1);
      UseAll(1);
      if (mock::FailedCall().empty()) std::_Exit(kNothingFailed);
    });
    if (outcome == 0) {
      ++number;
    } else if (outcome != kNothingFailed) {
      check::Fail(__FILE__, __LINE__, "call " + std::to_string(number + 1) + " failed");
    }
  }
  std::printf("  %d calls\n", number);
  CHECK(number > 100);
}

}  // namespace

// In children, before this process has looked for the driver's calls.
TEST(ADriverWithoutWordsSaysSo) {
  CHECK_EQ(
      InChild([] {
        mock::HideDriverCall("cuStreamBatchMemOp");
        const Pages pages(1);
        Plugin plugin(1);
        ha_cuda_traits traits{};
        CHECK(plugin.Call(&ha_cuda_plugin::traits, &traits));
        CHECK_EQ(traits.stream_words, 0);
        CHECK_EQ(traits.shares, 1);
        CHECK_EQ(traits.exclusive, 1);
        CHECK_EQ(traits.concurrent, 0);
        CHECK_EQ(traits.processors, 4);
        CHECK_EQ(std::string(traits.bus_id), "0000:01:00.0");
        CHECK(plugin.Call(&ha_cuda_plugin::pin, pages.at(), pages.bytes()));
        CHECK(!Await(plugin, nullptr, {pages.word(0)}, 1U));
        CHECK(plugin.message().find("this driver has no cuStreamBatchMemOp") != std::string::npos);
        plugin.Drop(&ha_cuda_plugin::unpin, pages.at());
      }),
      0);
}

TEST(EverythingIsGivenBackAndNothingElseIsTouched) {
  CHECK_EQ(InChild([] {
             UseAll(1);
             CHECK(!mock::HasContext(0));
           }),
           0);
  // A framework has its context on GPU 0, and finds it current again.
  CHECK_EQ(InChild([] {
             mock::MakeCurrent(0);
             UseAll(1);
             UseAll(0);
           }),
           0);
}

TEST(AnyCallMayRunOutOfMemory) {
  FailEach([](int call) { mock::FailCall(call, cudaErrorMemoryAllocation); });
}

TEST(AnyCallMayFindTheGpuGone) { FailEach(mock::LoseAtCall); }

TEST(AnyThreadMayCallWithoutAContextOnAnotherGpu) {
  Plugin plugin(1);
  void* stream = nullptr;
  std::thread([&] {
    CHECK(plugin.Call(&ha_cuda_plugin::create_stream, &stream));
    void* event = nullptr;
    CHECK(plugin.Call(&ha_cuda_plugin::create_event, &event));
    CHECK(plugin.Call(&ha_cuda_plugin::record, event, stream));
    plugin.Drop(&ha_cuda_plugin::destroy_event, event);
  }).join();
  CHECK(!mock::HasContext(0));
}

TEST(AnErrorOfAnotherLibraryIsNotTakenForTheOwn) {
  Plugin plugin(1);
  void* stream = nullptr;
  CHECK(plugin.Call(&ha_cuda_plugin::create_stream, &stream));
  const Memory a(plugin, kShare);
  const Memory b(plugin, kShare);
  mock::SetLastError(cudaErrorInvalidValue);
  CHECK(Add(plugin, stream, a, b, 100));
  CHECK(Pack(plugin, stream, Bytes(a, b, 0, 3)));
  CHECK(PackMany(plugin, stream, a, b));
  CHECK_EQ(mock::LastError(), cudaErrorInvalidValue);
  mock::SetLastError(cudaSuccess);
}

TEST(AGridIsAsLargeAsWhatRunsAtOnce) {
  Plugin plugin(1);
  void* stream = nullptr;
  CHECK(plugin.Call(&ha_cuda_plugin::create_stream, &stream));
  const Memory a(plugin, kShare);
  const Memory b(plugin, kShare);
  CHECK(Add(plugin, stream, a, b, 2));
  CHECK_EQ(mock::LastBlocks(), 2U);
  CHECK(Add(plugin, stream, a, b, 1000));
  CHECK_EQ(mock::LastBlocks(), 12U);  // 4 processors, 3 blocks on each
}

TEST(CapturesOfAnotherThreadAreNotDisturbed) {
  mock::MakeCurrent(1);
  const cudaStream_t caller = mock::BlockingStream();
  mock::BeginCapture(caller);
  UseAll(1);
  CHECK(mock::EndCapture(caller));
}

TEST(RecordingInACaptureIsRefused) {
  mock::MakeCurrent(1);
  const cudaStream_t caller = mock::BlockingStream();
  Plugin plugin(1);
  void* event = nullptr;
  CHECK(plugin.Call(&ha_cuda_plugin::create_event, &event));
  mock::BeginCapture(caller);
  CHECK(!plugin.Call(&ha_cuda_plugin::record, event, static_cast<void*>(caller)));
  CHECK(plugin.message().find("cannot be captured into a CUDA graph") != std::string::npos);
  // The default stream would become part of that capture.
  CHECK(!plugin.Call(&ha_cuda_plugin::record, event, static_cast<void*>(nullptr)));
  CHECK(mock::EndCapture(caller));
  CHECK(plugin.Call(&ha_cuda_plugin::record, event, static_cast<void*>(nullptr)));
  plugin.Drop(&ha_cuda_plugin::destroy_event, event);
}

TEST(WordsHaveTheGpusAddressInTheirRange) {
  const Pages pages(2);
  Plugin plugin(1);
  void* stream = nullptr;
  CHECK(plugin.Call(&ha_cuda_plugin::create_stream, &stream));
  CHECK(!Write(plugin, stream, {pages.word(0)}, 1U));
  CHECK(plugin.message().find("not pinned") != std::string::npos);
  CHECK(plugin.Call(&ha_cuda_plugin::pin, pages.at(), pages.bytes()));
  for (const size_t index : {size_t{0}, size_t{1}, 2 * kPage / sizeof(uint32_t) - 1}) {
    CHECK(Write(plugin, stream, {pages.word(index)}, 7U));
    mock::RunStreams();
    CHECK_EQ(*pages.word(index), 7U);
  }
  CHECK(!Await(plugin, stream, {pages.word(0), pages.word(2 * kPage / 4)}, 1U));
  // As many as the driver takes in one call, and none.
  std::vector<uint32_t*> words;
  for (size_t index = 100; index < 356; ++index) words.push_back(pages.word(index));
  CHECK(Write(plugin, stream, {}, 3U));
  CHECK(Write(plugin, stream, words, 3U));
  CHECK(Await(plugin, stream, words, 3U));
  mock::RunStreams();
  CHECK_EQ(*pages.word(100) + *pages.word(355), 6U);
  words.push_back(pages.word(356));
  CHECK(!Write(plugin, stream, words, 4U));
  CHECK(plugin.message().find("at most 256 words") != std::string::npos);
  // A wait lasts until the word has passed the value, modulo 2^32.
  *pages.word(9) = 0xfffffffe;
  CHECK(Await(plugin, stream, {pages.word(9)}, 1U));
  CHECK(Write(plugin, stream, {pages.word(8)}, 1U));
  mock::RunStreams();
  CHECK_EQ(*pages.word(8), 0U);
  *pages.word(9) = 2;
  mock::RunStreams();
  CHECK_EQ(*pages.word(8), 1U);
  plugin.Drop(&ha_cuda_plugin::unpin, pages.at());
  CHECK(!Write(plugin, stream, {pages.word(0)}, 1U));
}

TEST(TwoGpusOfAProcessPinTheSamePages) {
  const Pages pages(1);
  Plugin one(1);
  Plugin other(0);
  void* stream = nullptr;
  CHECK(other.Call(&ha_cuda_plugin::create_stream, &stream));
  CHECK(one.Call(&ha_cuda_plugin::pin, pages.at(), pages.bytes()));
  CHECK(other.Call(&ha_cuda_plugin::pin, pages.at(), pages.bytes()));
  CHECK(Write(other, stream, {pages.word(3)}, 4U));
  mock::RunStreams();
  CHECK_EQ(*pages.word(3), 4U);
  other.Drop(&ha_cuda_plugin::unpin, pages.at());
  one.Drop(&ha_cuda_plugin::unpin, pages.at());
}

TEST(MemoryOfTheOwnProcessIsNotOpened) {
  Plugin plugin(1);
  const Memory memory(plugin, kShare);
  ha_cuda_handle handle{};
  CHECK(plugin.Call(&ha_cuda_plugin::share_memory, memory.at(), &handle));
  void* opened = nullptr;
  CHECK(!plugin.Call(&ha_cuda_plugin::open_memory, static_cast<const ha_cuda_handle*>(&handle),
                     &opened));
  CHECK(opened == nullptr);
}
