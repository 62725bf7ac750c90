#include "execute/cuda/host/shares.h"

#include <chrono>
#include <thread>
#include <utility>

#include "base/clock.h"

namespace horoacc::cuda {
namespace {

constexpr size_t kShareBytes = size_t{2} << 20;

template <typename Condition>
bool Soon(Condition condition) {
  const int64_t limit = NowNs() + kCloseLimit;
  while (!condition()) {
    if (NowNs() >= limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace

Shares::Shares(std::shared_ptr<Gpu> gpu, GpuGroupSegment segment, uint32_t me,
               std::vector<bool> in_this_process, std::function<bool(uint32_t)> alive)
    : gpu_(std::move(gpu)),
      segment_(segment),
      me_(me),
      in_this_process_(std::move(in_this_process)),
      alive_(std::move(alive)),
      memory_(segment.ranks) {}

Shares::~Shares() { Close(); }

// The GPU of a rank alone need not be able to share memory. CUDA takes small allocations out of
// blocks of 2 MiB, of which a handle would show the others all that lies there.
Status Shares::Offer(size_t buffer_bytes, bool to_others) {
  to_others = to_others && segment_.ranks > 1;
  GpuPeerInfo& info = segment_.infos[me_];
  if (!stream_) {
    HA_ASSIGN(stream_, gpu_->TakeStream());
    HA_ASSIGN(reducing_stream_, gpu_->TakeStream());
  }
  if (memory_[me_] == nullptr) {
    const size_t blocks = (buffer_bytes + kShareBytes - 1) / kShareBytes;
    HA_TRY(gpu_->Call(&ha_cuda_plugin::allocate, blocks * kShareBytes, &memory_[me_]));
  }
  if (to_others) {
    HA_TRY(gpu_->Call(&ha_cuda_plugin::share_memory, memory_[me_], &info.memory_handle));
  }
  info.memory = memory_[me_];
  return {};
}

Status Shares::OpenMemory(uint32_t index) {
  if (index == me_ || memory_[index] != nullptr) return {};
  const GpuPeerInfo& info = segment_.infos[index];
  if (!in_this_process_[index])
    return gpu_->Call(&ha_cuda_plugin::open_memory, &info.memory_handle, &memory_[index]);
  memory_[index] = info.memory;
  return {};
}

Status Shares::PinWords() {
  if (pinned_) return {};
  HA_TRY(gpu_->Pin(segment_.words, segment_.word_pages()));
  pinned_ = true;
  return {};
}

bool Shares::IsDone(const GpuStream& stream) const {
  if (!stream) return true;
  const Result<GpuEvent> last = gpu_->Record(stream.get());
  return last.ok() && Soon([&] {
           const Result<bool> done = gpu_->IsDone(last.value());
           return done.ok() && done.value();
         });
}

bool Shares::OthersHaveClosed() const {
  return Soon([this] {
    for (uint32_t r = 0; r < segment_.ranks; ++r) {
      const bool closed = segment_.infos[r].closed.load(std::memory_order_acquire) != 0;
      if (r != me_ && !closed && alive_(r)) return false;
    }
    return true;
  });
}

// Ranks of this process have given pointers, which there is no need to close.
void Shares::DropOpened() {
  for (uint32_t r = 0; r < segment_.ranks; ++r) {
    if (r == me_) continue;
    void* const memory = std::exchange(memory_[r], nullptr);
    if (memory != nullptr && !in_this_process_[r])
      gpu_->Drop(&ha_cuda_plugin::close_memory, memory);
  }
}

// A stream that is not idle in time may be the next time; until then `closed` stays 0.
void Shares::Close() {
  if (!closed_) {
    if (!IsDone(stream_) || !IsDone(reducing_stream_)) return;
    DropOpened();
    if (std::exchange(pinned_, false)) gpu_->Unpin(segment_.words);
    segment_.infos[me_].closed.store(1, std::memory_order_release);
    closed_ = true;
  }
  if (memory_[me_] == nullptr || !OthersHaveClosed()) return;
  gpu_->Drop(&ha_cuda_plugin::deallocate, std::exchange(memory_[me_], nullptr));
}

}  // namespace horoacc::cuda
