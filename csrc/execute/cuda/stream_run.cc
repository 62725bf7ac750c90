#include "execute/cuda/stream_run.h"

#include <utility>

namespace horoacc::cuda {
namespace {

constexpr uint32_t kFarAhead = 1U << 30;  // of every number that a stream waits for

uint32_t* Plain(std::atomic<uint32_t>& word) { return reinterpret_cast<uint32_t*>(&word); }

}  // namespace

StreamRun::StreamRun(Bucket bucket)
    : bucket_(std::move(bucket)), team_(bucket_.team()), watch_(team_.polling()) {}

// What comes behind the waits then works on buffers that nobody needs any more; the tensors stay
// the stream's until it is through. A GPU that refuses has failed before.
StreamRun::~StreamRun() {
  if (done_) return;
  for (uint32_t r = 0; r < team_.ranks(); ++r) {
    TeamWords& words = team_.board().of(team_.me(), r);
    words.packed.store(number_ + kFarAhead, std::memory_order_release);
    words.reduced.store(number_ + kFarAhead, std::memory_order_release);
  }
  static_cast<void>(bucket_.Land());
}

bool StreamRun::Advance() {
  if (done_ || failed()) return false;
  Result<bool> moved = Turn();
  if (moved.ok()) return moved.value();
  status_ = std::move(moved.error());
  return false;
}

// This rank's stream tells the others' how far it is, and goes on when they are there.
Status StreamRun::Meet(Word word) {
  for (uint32_t r = 0; r < team_.ranks(); ++r) {
    if (r == team_.me()) continue;
    uint32_t* const theirs = Plain(team_.board().of(r, team_.me()).*word);
    HA_TRY(team_.gpu().Call(&ha_cuda_plugin::write_word, team_.stream(), theirs, number_));
  }
  for (uint32_t r = 0; r < team_.ranks(); ++r) {
    if (r == team_.me()) continue;
    uint32_t* const mine = Plain(team_.board().of(team_.me(), r).*word);
    HA_TRY(team_.gpu().Call(&ha_cuda_plugin::await_word, team_.stream(), mine, number_));
  }
  return {};
}

Status StreamRun::Enqueue() {
  if (window_ == 0) HA_TRY(bucket_.AwaitTensors());
  number_ = static_cast<uint32_t>(team_.NextWindow());
  HA_TRY(bucket_.Pack(window_));
  HA_TRY(Meet(&TeamWords::packed));
  HA_TRY(bucket_.ReduceShard(window_));
  HA_TRY(Meet(&TeamWords::reduced));
  HA_ASSIGN(reduced_, team_.gpu().Record(team_.stream()));
  return {};
}

Result<bool> StreamRun::Turn() {
  if (!reduced_) {
    HA_TRY(Enqueue());
    return true;
  }
  HA_ASSIGN(const bool reduced, team_.gpu().IsDone(reduced_));
  watch_.Set(!reduced);
  if (!reduced) return false;
  HA_TRY(bucket_.Unpack(window_));
  reduced_ = nullptr;
  if (++window_ < bucket_.windows()) return true;
  HA_TRY(bucket_.Land());
  done_ = true;
  return true;
}

}  // namespace horoacc::cuda
