#include "execute/cuda/host/shares.h"

#include <chrono>
#include <thread>
#include <utility>

#include "base/clock.h"

namespace horoacc::cuda {
namespace {

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
      memory_(segment.ranks),
      packed_(segment.ranks),
      reduced_(segment.ranks) {}

Shares::~Shares() { Close(); }

// The GPU of a rank alone need not be able to share memory.
Status Shares::Offer(size_t buffer_bytes, bool to_others) {
  to_others = to_others && segment_.ranks > 1;
  GpuPeerInfo& info = segment_.infos[me_];
  HA_ASSIGN(stream_, gpu_->TakeStream());
  HA_TRY(gpu_->Call(&ha_cuda_plugin::allocate, buffer_bytes, &memory_[me_]));
  if (to_others) {
    HA_TRY(gpu_->Call(&ha_cuda_plugin::share_memory, memory_[me_], &info.memory_handle));
  }
  const auto make_event = [&](void** event, ha_cuda_handle* handle) {
    return to_others ? gpu_->Call(&ha_cuda_plugin::create_shared_event, event, handle)
                     : gpu_->Call(&ha_cuda_plugin::create_event, event);
  };
  HA_TRY(make_event(&packed_[me_], &info.packed_handle));
  HA_TRY(make_event(&reduced_[me_], &info.reduced_handle));
  info.memory = memory_[me_];
  info.packed_event = packed_[me_];
  info.reduced_event = reduced_[me_];
  return {};
}

template <typename Open>
Status Shares::OpenPart(uint32_t index, void* pointer, const ha_cuda_handle& handle, Open open,
                        void** part) const {
  if (index == me_) return {};
  if (!in_this_process_[index]) return gpu_->Call(open, &handle, part);
  *part = pointer;
  return {};
}

Status Shares::OpenMemory(uint32_t index) {
  const GpuPeerInfo& info = segment_.infos[index];
  return OpenPart(index, info.memory, info.memory_handle, &ha_cuda_plugin::open_memory,
                  &memory_[index]);
}

Status Shares::OpenPackedEvent(uint32_t index) {
  const GpuPeerInfo& info = segment_.infos[index];
  return OpenPart(index, info.packed_event, info.packed_handle, &ha_cuda_plugin::open_event,
                  &packed_[index]);
}

Status Shares::OpenReducedEvent(uint32_t index) {
  const GpuPeerInfo& info = segment_.infos[index];
  return OpenPart(index, info.reduced_event, info.reduced_handle, &ha_cuda_plugin::open_event,
                  &reduced_[index]);
}

Status Shares::PinWords() {
  HA_TRY(gpu_->Pin(segment_.words, segment_.word_pages()));
  pinned_ = true;
  return {};
}

bool Shares::StreamIsDone() const {
  const Result<GpuEvent> last = gpu_->Record(stream_.get());
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

void Shares::DropEvent(void* event) const {
  if (event != nullptr) gpu_->Drop(&ha_cuda_plugin::destroy_event, event);
}

// Ranks of this process have given pointers, which there is no need to close.
void Shares::DropOpened() {
  for (uint32_t r = 0; r < segment_.ranks; ++r) {
    if (r == me_) continue;
    void* const memory = std::exchange(memory_[r], nullptr);
    void* const packed = std::exchange(packed_[r], nullptr);
    void* const reduced = std::exchange(reduced_[r], nullptr);
    if (in_this_process_[r]) continue;
    if (memory != nullptr) gpu_->Drop(&ha_cuda_plugin::close_memory, memory);
    DropEvent(packed);
    DropEvent(reduced);
  }
}

// A stream that is not idle in time may be the next time; until then `closed` stays 0.
void Shares::Close() {
  if (!closed_) {
    if (stream_ && !StreamIsDone()) return;
    DropOpened();
    if (std::exchange(pinned_, false)) gpu_->Unpin(segment_.words);
    segment_.infos[me_].closed.store(1, std::memory_order_release);
    closed_ = true;
  }
  const bool has_nothing = !memory_[me_] && !packed_[me_] && !reduced_[me_];
  if (has_nothing || !OthersHaveClosed()) return;
  if (void* const own = std::exchange(memory_[me_], nullptr))
    gpu_->Drop(&ha_cuda_plugin::deallocate, own);
  DropEvent(std::exchange(packed_[me_], nullptr));
  DropEvent(std::exchange(reduced_[me_], nullptr));
}

}  // namespace horoacc::cuda
