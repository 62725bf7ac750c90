#include "execute/cuda/host/stream_run.h"

#include <utility>
#include <vector>

namespace horoacc::cuda {
namespace {

constexpr uint32_t kFarAhead = 1U << 30;  // of every number that a stream waits for

uint32_t* Plain(std::atomic<uint32_t>& word) { return reinterpret_cast<uint32_t*>(&word); }

}  // namespace

// The kernels behind the waits then work on buffers that no rank needs any more.
StreamRun::~StreamRun() {
  if (complete()) return;
  const uint32_t far = static_cast<uint32_t>(bucket_.number(bucket_.windows())) + kFarAhead;
  for (uint32_t r = 0; r < group_.ranks(); ++r) {
    GpuPeerWords& words = group_.segment().of(group_.me(), r);
    for (auto& word : words.packed) word.store(far, std::memory_order_release);
    for (auto& word : words.reduced) word.store(far, std::memory_order_release);
  }
}

// Puts a write of each rank's word on a stream.
Status StreamRun::Tell(Words words, uint64_t number, void* stream) const {
  std::vector<uint32_t*> theirs;
  for (uint32_t r = 0; r < group_.ranks(); ++r) {
    GpuPeerWords& told = group_.segment().of(r, group_.me());
    theirs.push_back(Plain((told.*words)[WindowLine::SlotOf(number)]));
  }
  return group_.gpu().Call(&ha_cuda_plugin::write_words, stream, theirs.data(), theirs.size(),
                           static_cast<uint32_t>(number));
}

// Puts a wait for each rank's write on the stream for reductions.
Status StreamRun::Await(Words words, uint64_t number) const {
  std::vector<uint32_t*> mine;
  for (uint32_t r = 0; r < group_.ranks(); ++r) {
    GpuPeerWords& awaited = group_.segment().of(group_.me(), r);
    mine.push_back(Plain((awaited.*words)[WindowLine::SlotOf(number)]));
  }
  return group_.gpu().Call(&ha_cuda_plugin::await_words, group_.reducing_stream(), mine.data(),
                           mine.size(), static_cast<uint32_t>(number));
}

Status StreamRun::EndPacking(Window& window) {
  return Tell(&GpuPeerWords::packed, window.number, group_.stream());
}

Status StreamRun::Enqueue(StreamStep step, const Window& window) const {
  switch (step) {
    case StreamStep::kAwaitPacked:
      return Await(&GpuPeerWords::packed, window.number);
    case StreamStep::kReduceShard:
      return bucket_.ReduceShard(window.index, group_.reducing_stream());
    case StreamStep::kTellReduced:
      return Tell(&GpuPeerWords::reduced, window.number, group_.reducing_stream());
    default:
      return Await(&GpuPeerWords::reduced, window.number);
  }
}

Result<bool> StreamRun::Launch(Window& window) {
  for (const StreamStep step : kStreamSteps) HA_TRY(Enqueue(step, window));
  HA_ASSIGN(window.reduced, group_.RecordReduced());
  return true;
}

}  // namespace horoacc::cuda
