#include "execute/cuda/host/stream_run.h"

#include <utility>

namespace horoacc::cuda {
namespace {

constexpr uint32_t kFarAhead = 1U << 30;  // of every number that a stream waits for

uint32_t* Plain(std::atomic<uint32_t>& word) { return reinterpret_cast<uint32_t*>(&word); }

}  // namespace

StreamRun::StreamRun(Bucket bucket, std::vector<DeviceCall*> calls)
    : GpuRun(bucket.gpu_group(), std::move(calls)), bucket_(std::move(bucket)), turn_(gpu_group_) {}

// What comes behind the waits then works on buffers that nobody needs any more.
StreamRun::~StreamRun() {
  if (complete()) return;
  for (uint32_t r = 0; r < gpu_group_.ranks(); ++r) {
    GpuPeerWords& words = gpu_group_.control().of(gpu_group_.me(), r);
    words.packed.store(number_ + kFarAhead, std::memory_order_release);
    words.reduced.store(number_ + kFarAhead, std::memory_order_release);
  }
}

// This rank's stream tells the others' how far it is.
Status StreamRun::Tell(Word word) {
  for (uint32_t r = 0; r < gpu_group_.ranks(); ++r) {
    if (r == gpu_group_.me()) continue;
    uint32_t* const theirs = Plain(gpu_group_.control().of(r, gpu_group_.me()).*word);
    HA_TRY(
        gpu_group_.gpu().Call(&ha_cuda_plugin::write_word, gpu_group_.stream(), theirs, number_));
  }
  return {};
}

// It goes on when theirs are there.
Status StreamRun::Await(Word word) {
  for (uint32_t r = 0; r < gpu_group_.ranks(); ++r) {
    if (r == gpu_group_.me()) continue;
    uint32_t* const mine = Plain(gpu_group_.control().of(gpu_group_.me(), r).*word);
    HA_TRY(gpu_group_.gpu().Call(&ha_cuda_plugin::await_word, gpu_group_.stream(), mine, number_));
  }
  return {};
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

Result<bool> StreamRun::Go() {
  switch (step_) {
    case Step::kPack:
      if (window_ == 0) HA_TRY(AwaitTensors());
      number_ = static_cast<uint32_t>(gpu_group_.NextWindow());
      HA_TRY(bucket_.Pack(window_));
      step_ = Step::kTurn;
      return true;
    case Step::kTurn: {
      if (!HasCome(turn_)) return false;
      for (const StreamStep step : kStreamSteps) HA_TRY(Enqueue(step));
      HA_ASSIGN(reduced_, gpu_group_.gpu().Record(gpu_group_.stream()));
      step_ = Step::kReduced;
      return true;
    }
    default: {
      HA_ASSIGN(const bool reduced, HasRun(reduced_));
      if (!reduced) return false;
      HA_TRY(bucket_.Unpack(window_));
      step_ = Step::kPack;
      if (++window_ < bucket_.windows()) return true;
      turn_.Pass();
      HA_TRY(Complete());
      return true;
    }
  }
}

}  // namespace horoacc::cuda
