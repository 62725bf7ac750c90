#include "negotiate/control_segment/control_segment.h"

#include <fcntl.h>
#include <sched.h>

#include <algorithm>
#include <cstring>

#include "negotiate/control_segment/set_segment.h"

namespace horoacc {

ControlSegment::ControlSegment(const HostShare& share, uint64_t fusion_threshold)
    : base_(share.control.data()),
      fd_(share.control.fd()),
      doorbells_(reinterpret_cast<Doorbell*>(base_ + WholePages(sizeof(HostHeader)))),
      states_(reinterpret_cast<RankState*>(reinterpret_cast<std::byte*>(doorbells_) +
                                           WholePages(sizeof(Doorbell) * share.ranks.size()))),
      ranks_(share.ranks),
      local_size_(static_cast<uint32_t>(share.ranks.size())),
      fusion_threshold_(fusion_threshold) {}

size_t ControlSegment::BytesFor(uint32_t local_size) {
  return WholePages(sizeof(HostHeader)) + WholePages(sizeof(Doorbell) * local_size) +
         WholePages(sizeof(RankState) * local_size) +
         kSegmentSets * SetSegment::BytesFor(local_size);
}

std::byte* ControlSegment::set_memory(uint32_t slot) const {
  return reinterpret_cast<std::byte*>(states_) + WholePages(sizeof(RankState) * local_size_) +
         slot * SetSegment::BytesFor(local_size_);
}

size_t ControlSegment::BytesUpTo(uint32_t slots) const {
  return static_cast<size_t>(set_memory(slots) - base_);
}

void ControlSegment::WipeSet(uint32_t slot) const {
  std::byte* const memory = set_memory(slot);
  const size_t bytes = SetSegment::BytesFor(local_size_);
  // Gives the pages back, on all ranks; they read as zeroes then.
  if (::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, memory - base_,
                  static_cast<off_t>(bytes)) != 0)
    std::memset(memory, 0, bytes);
}

bool ControlSegment::Abort(const Error& error) const {
  HostHeader& header = this->header();
  uint64_t none = 0;
  const uint64_t word =
      static_cast<uint64_t>(error.kind) << 32 | static_cast<uint32_t>(error.culprit + 1);
  if (!header.abort_word.compare_exchange_strong(none, word, std::memory_order_acq_rel))
    return false;
  const size_t length = std::min(error.message.size(), sizeof header.abort_text - 1);
  std::memcpy(header.abort_text, error.message.data(), length);
  header.abort_text_ready.store(1, std::memory_order_release);
  return true;
}

Error ControlSegment::aborted() const {
  const HostHeader& header = this->header();
  const uint64_t word = header.abort_word.load(std::memory_order_acquire);
  if (word == 0) return MakeError(ErrorKind::kOk, "");
  // The text follows within nanoseconds, unless the writer died in between.
  for (int spin = 0; spin < 1000 && header.abort_text_ready.load(std::memory_order_acquire) == 0;
       ++spin) {
    sched_yield();
  }
  const bool ready = header.abort_text_ready.load(std::memory_order_acquire) != 0;
  return MakeError(static_cast<ErrorKind>(word >> 32),
                   ready ? header.abort_text : "the job was aborted",
                   static_cast<int>(word & 0xffffffff) - 1);
}

}  // namespace horoacc
