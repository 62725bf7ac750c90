#pragma once
// The state of the mock: what exists, and what streams have yet to do.
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <set>

#include "mock_cuda/mock_cuda.h"

namespace horoacc::mock {

/// Work of a stream; it begins once `ready` says so.
struct Work {
  std::function<bool()> ready;
  std::function<void()> run;
};

struct Stream {
  int device;
  bool blocking;  ///< waits for the default stream, and that for it
  bool is_default;
  std::deque<Work> work;
  bool captured = false;
};

/// `done` is of the last record; null: none yet.
struct Event {
  int device;
  std::shared_ptr<bool> done;
};

enum class Kind { kOwn, kForeign, kHost, kRegistered };

/// A range of addresses. The host cannot touch a GPU's; its bytes lie elsewhere.
struct Range {
  Kind kind;
  char* address;
  size_t bytes;
  char* real;
  int device = 0;
};

struct World {
  int calls = 0;
  int fail_at = 0;
  cudaError_t fail_with = cudaSuccess;
  std::string failed;
  bool lost = false;
  bool is_lost_then = false;  ///< from fail_at on
  std::set<std::string> hidden;
  bool context[kDevices] = {};
  std::list<Stream> streams;
  std::list<Event> events;
  std::list<Range> ranges;
  std::list<Stream> defaults;
  std::map<uint64_t, size_t> foreign;  ///< bytes, by the handle's number
  bool capture_holds = true;
};

World& TheWorld();

/// Of the calling thread.
struct Thread {
  int device = 0;
  cudaError_t last = cudaSuccess;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
};
Thread& TheThread();

/// Ends the test: CUDA forbids what was done, or does not say what it does.
[[noreturn]] void Forbid(const std::string& what);

/// How a call goes with the capture of another thread.
enum class InCapture { kSafe, kUnsafe };
/// To be called first by every call: its failure, if it is to fail.
[[nodiscard]] cudaError_t Begin(const char* name, InCapture safety = InCapture::kSafe);
/// As the thread's last error, which stays until somebody asks for it.
cudaError_t Failed(cudaError_t code);

/// The stream of a handle; the default one of the current device if that is null.
Stream& StreamOf(cudaStream_t stream);
Event& EventOf(cudaEvent_t event);
cudaStream_t HandleOf(Stream& stream);
/// The range in which `bytes` from `address` on lie as a whole, or null.
Range* RangeOf(const void* address, size_t bytes);
/// Addresses that nobody can touch.
char* Reserve(size_t bytes);
void Remove(Range* range);
/// Whether some blocking stream of the device is being captured.
bool CapturesOn(int device);
/// Runs everything on all streams of the device; forbids that some of it waits for another rank.
void WaitForDevice(int device, const char* why);

}  // namespace horoacc::mock
