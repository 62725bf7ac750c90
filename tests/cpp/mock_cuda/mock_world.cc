#include "mock_cuda/mock_world.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#define HOROACC_CHECK_WITHOUT_MAIN
#include "support/check.h"

namespace horoacc::mock {

World& TheWorld() {
  static World world;
  return world;
}

Thread& TheThread() {
  thread_local Thread thread;
  return thread;
}

void Forbid(const std::string& what) { check::Fail("CUDA", 0, what); }

cudaError_t Failed(cudaError_t code) {
  if (code != cudaSuccess) TheThread().last = code;
  return code;
}

cudaError_t Begin(const char* name, InCapture safety) {
  World& world = TheWorld();
  if (++world.calls == world.fail_at) {
    world.failed = name;
    world.lost = world.is_lost_then;
    return Failed(world.fail_with);
  }
  if (world.lost) return Failed(cudaErrorLaunchFailure);
  const bool captures = std::ranges::any_of(world.streams, &Stream::captured);
  if (safety == InCapture::kSafe || !captures || TheThread().mode == cudaStreamCaptureModeRelaxed)
    return cudaSuccess;
  world.capture_holds = false;
  return Failed(cudaErrorStreamCaptureUnsupported);
}

int Calls() { return TheWorld().calls; }
void FailCall(int number, cudaError_t code) {
  TheWorld().fail_at = number;
  TheWorld().fail_with = code;
}
std::string FailedCall() { return TheWorld().failed; }
void LoseAtCall(int number) {
  FailCall(number, cudaErrorLaunchFailure);
  TheWorld().is_lost_then = true;
}
bool IsLost() { return TheWorld().lost; }
void HideDriverCall(const char* name) { TheWorld().hidden.insert(name); }

cudaError_t LastError() { return TheThread().last; }
void SetLastError(cudaError_t code) { TheThread().last = code; }
void MakeCurrent(int device) {
  TheThread().device = device;
  TheWorld().context[device] = true;
}
int Current() { return TheThread().device; }
bool HasContext(int device) { return TheWorld().context[device]; }
bool IsRelaxed() { return TheThread().mode == cudaStreamCaptureModeRelaxed; }

cudaStream_t HandleOf(Stream& stream) { return reinterpret_cast<cudaStream_t>(&stream); }

Stream& StreamOf(cudaStream_t stream) {
  World& world = TheWorld();
  if (stream == nullptr) {
    const int device = Current();
    for (Stream& known : world.defaults) {
      if (known.device == device) return known;
    }
    return world.defaults.emplace_back(Stream{device, true, true, {}});
  }
  for (Stream& known : world.streams) {
    if (HandleOf(known) == stream) return known;
  }
  Forbid("a stream that does not exist");
}

Event& EventOf(cudaEvent_t event) {
  for (Event& known : TheWorld().events) {
    if (reinterpret_cast<cudaEvent_t>(&known) == event) return known;
  }
  Forbid("an event that does not exist");
}

Range* RangeOf(const void* address, size_t bytes) {
  const auto* const at = static_cast<const char*>(address);
  for (Range& range : TheWorld().ranges) {
    if (at >= range.address && at + bytes <= range.address + range.bytes) return &range;
  }
  return nullptr;
}

char* Reserve(size_t bytes) {
  void* const at =
      mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) Forbid("the test has no more addresses");
  return static_cast<char*>(at);
}

void Remove(Range* range) {
  if (range->kind != Kind::kRegistered) std::free(range->real);
  if (range->kind != Kind::kHost) munmap(range->address, range->bytes);
  TheWorld().ranges.remove_if([range](const Range& known) { return &known == range; });
}

void* BytesAt(const void* address) {
  const Range* const range = RangeOf(address, 1);
  if (range == nullptr) Forbid("an address that no GPU reaches");
  return range->real + (static_cast<const char*>(address) - range->address);
}

cudaStream_t BlockingStream() {
  return HandleOf(TheWorld().streams.emplace_back(Stream{Current(), true, false, {}}));
}

void BeginCapture(cudaStream_t stream) {
  StreamOf(stream).captured = true;
  TheWorld().capture_holds = true;
}

bool EndCapture(cudaStream_t stream) {
  StreamOf(stream).captured = false;
  return TheWorld().capture_holds;
}

bool CapturesOn(int device) {
  return std::ranges::any_of(TheWorld().streams, [device](const Stream& stream) {
    return stream.device == device && stream.blocking && stream.captured;
  });
}

void Enqueue(cudaStream_t stream, std::function<void()> body) {
  StreamOf(stream).work.push_back({{}, std::move(body)});
}

void RunStreams() {
  World& world = TheWorld();
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (std::list<Stream>* const streams : {&world.defaults, &world.streams}) {
      for (Stream& stream : *streams) {
        while (!stream.work.empty()) {
          const Work& first = stream.work.front();
          if (first.ready && !first.ready()) break;
          const std::function<void()> run = first.run;
          stream.work.pop_front();
          if (run) run();
          goes_on = true;
        }
      }
    }
  }
}

void WaitForDevice(int device, const char* why) {
  RunStreams();
  for (const Stream& stream : TheWorld().streams) {
    if (stream.device == device && !stream.work.empty() && !TheWorld().lost)
      Forbid(std::string(why) + " waits for a stream that waits for another rank");
  }
}

cudaIpcMemHandle_t ForeignMemory(size_t bytes) {
  World& world = TheWorld();
  const uint64_t number = uint64_t{1} << 32 | world.foreign.size();
  world.foreign[number] = bytes;
  cudaIpcMemHandle_t handle{};
  std::memcpy(handle.reserved, &number, sizeof number);
  return handle;
}

std::vector<std::string> Leaks() {
  std::vector<std::string> leaks;
  const World& world = TheWorld();
  for (const Stream& stream : world.streams) {
    if (!stream.blocking) leaks.emplace_back("a stream");
  }
  for (size_t i = 0; i < world.events.size(); ++i) leaks.emplace_back("an event");
  for (const Range& range : world.ranges) {
    constexpr const char* kNames[] = {"memory of a GPU", "memory of another process",
                                      "pinned memory", "a registration"};
    leaks.emplace_back(kNames[static_cast<int>(range.kind)]);
  }
  return leaks;
}

}  // namespace horoacc::mock
