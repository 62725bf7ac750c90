#include "execute/cuda/host/shares.h"

#include <chrono>
#include <thread>
#include <utility>

#include "base/clock.h"

namespace horoacc::cuda {
namespace {

constexpr int64_t kPatience = 2 * kSecond;

template <typename Condition>
bool Soon(Condition condition) {
  const int64_t limit = NowNs() + kPatience;
  while (!condition()) {
    if (NowNs() >= limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace

Shares::Shares(std::shared_ptr<Gpu> gpu, GpuGroupSegment control, uint32_t me,
               std::vector<bool> in_this_process, std::function<bool(uint32_t)> alive)
    : gpu_(std::move(gpu)),
      control_(control),
      me_(me),
      in_this_process_(std::move(in_this_process)),
      alive_(std::move(alive)),
      memory_(control.ranks),
      packed_(control.ranks),
      reduced_(control.ranks) {}

Shares::~Shares() { Close(); }

Status Shares::MakeEvent(void** event, ha_cuda_handle* handle, bool to_others) const {
  if (!to_others) return gpu_->Call(&ha_cuda_plugin::create_event, event);
  return gpu_->Call(&ha_cuda_plugin::create_shared_event, event, handle);
}

// A rank alone may have a GPU that can share nothing.
Status Shares::Offer(size_t buffer_bytes, bool to_others) {
  to_others = to_others && control_.ranks > 1;
  GpuPeerInfo& info = control_.infos[me_];
  HA_ASSIGN(stream_, gpu_->TakeStream());
  HA_TRY(gpu_->Call(&ha_cuda_plugin::allocate, buffer_bytes, &memory_[me_]));
  if (to_others) {
    HA_TRY(gpu_->Call(&ha_cuda_plugin::share_memory, memory_[me_], &info.memory_handle));
  }
  HA_TRY(MakeEvent(&packed_[me_], &info.packed_handle, to_others));
  HA_TRY(MakeEvent(&reduced_[me_], &info.reduced_handle, to_others));
  info.memory = memory_[me_];
  info.packed_event = packed_[me_];
  info.reduced_event = reduced_[me_];
  return {};
}

Status Shares::OpenMemory(uint32_t index) {
  if (index == me_) return {};
  const GpuPeerInfo& info = control_.infos[index];
  if (in_this_process_[index]) {
    memory_[index] = info.memory;
    return {};
  }
  return gpu_->Call(&ha_cuda_plugin::open_memory, &info.memory_handle, &memory_[index]);
}

Status Shares::OpenEvent(uint32_t index, void* pointer, const ha_cuda_handle& handle,
                         void** event) const {
  if (index == me_) return {};
  if (in_this_process_[index]) {
    *event = pointer;
    return {};
  }
  return gpu_->Call(&ha_cuda_plugin::open_event, &handle, event);
}

Status Shares::OpenPackedEvent(uint32_t index) {
  const GpuPeerInfo& info = control_.infos[index];
  return OpenEvent(index, info.packed_event, info.packed_handle, &packed_[index]);
}

Status Shares::OpenReducedEvent(uint32_t index) {
  const GpuPeerInfo& info = control_.infos[index];
  return OpenEvent(index, info.reduced_event, info.reduced_handle, &reduced_[index]);
}

Status Shares::PinWords() {
  HA_TRY(gpu_->Pin(control_.words, control_.word_pages()));
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
    for (uint32_t r = 0; r < control_.ranks; ++r) {
      const bool closed = control_.infos[r].closed.load(std::memory_order_acquire) != 0;
      if (r != me_ && !closed && alive_(r)) return false;
    }
    return true;
  });
}

void Shares::DropEvent(void* event) const {
  if (event != nullptr) gpu_->Drop(&ha_cuda_plugin::destroy_event, event);
}

// What was opened of others; that of others in this process is theirs.
void Shares::DropOpened() {
  for (uint32_t r = 0; r < control_.ranks; ++r) {
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

// What was not idle in time may be the next time; until then nobody is told that it is closed.
void Shares::Close() {
  if (!let_go_) {
    if (stream_ && !StreamIsDone()) return;
    DropOpened();
    if (std::exchange(pinned_, false)) gpu_->Unpin(control_.words);
    control_.infos[me_].closed.store(1, std::memory_order_release);
    let_go_ = true;
  }
  const bool has_nothing = !memory_[me_] && !packed_[me_] && !reduced_[me_];
  if (has_nothing || !OthersHaveClosed()) return;
  if (void* const own = std::exchange(memory_[me_], nullptr))
    gpu_->Drop(&ha_cuda_plugin::deallocate, own);
  DropEvent(std::exchange(packed_[me_], nullptr));
  DropEvent(std::exchange(reduced_[me_], nullptr));
}

}  // namespace horoacc::cuda
