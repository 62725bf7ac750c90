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
  const uint32_t far = static_cast<uint32_t>(number_) + kFarAhead;
  for (uint32_t r = 0; r < group_.ranks(); ++r) {
    GpuPeerWords& words = group_.segment().of(group_.me(), r);
    words.packed.store(far, std::memory_order_release);
    words.reduced.store(far, std::memory_order_release);
  }
}

// Puts a write of each other rank's word on this rank's stream.
Status StreamRun::Tell(Word word) {
  std::vector<uint32_t*> theirs;
  for (uint32_t r = 0; r < group_.ranks(); ++r) {
    if (r != group_.me()) theirs.push_back(Plain(group_.segment().of(r, group_.me()).*word));
  }
  return group_.gpu().Call(&ha_cuda_plugin::write_words, group_.stream(), theirs.data(),
                           theirs.size(), static_cast<uint32_t>(number_));
}

// Puts a wait for each other rank's write on this rank's stream.
Status StreamRun::Await(Word word) {
  std::vector<uint32_t*> mine;
  for (uint32_t r = 0; r < group_.ranks(); ++r) {
    if (r != group_.me()) mine.push_back(Plain(group_.segment().of(group_.me(), r).*word));
  }
  return group_.gpu().Call(&ha_cuda_plugin::await_words, group_.stream(), mine.data(), mine.size(),
                           static_cast<uint32_t>(number_));
}

Status StreamRun::Enqueue(StreamStep step) {
  switch (step) {
    case StreamStep::kTellPacked:
      return Tell(&GpuPeerWords::packed);
    case StreamStep::kAwaitPacked:
      return Await(&GpuPeerWords::packed);
    case StreamStep::kReduceShard:
      return bucket_.ReduceShard(window_);
    case StreamStep::kTellReduced:
      return Tell(&GpuPeerWords::reduced);
    default:
      return Await(&GpuPeerWords::reduced);
  }
}

Result<bool> StreamRun::Reduce() {
  if (!reduced_) {
    for (const StreamStep step : kStreamSteps) HA_TRY(Enqueue(step));
    HA_ASSIGN(reduced_, group_.Record());
  }
  return HasRun(reduced_);
}

}  // namespace horoacc::cuda
