#include "base/flight_ring.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/events.h"

namespace horoacc {

FlightRing::FlightRing(size_t slots) {
  if (slots == 0) return;
  const size_t count = std::bit_ceil(slots);
  void* const pages = ::mmap(nullptr, count * sizeof(Slot), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) return;  // then no event is kept
  mask_ = count - 1;
  slots_ = static_cast<Slot*>(pages);
}

FlightRing::~FlightRing() {
  if (slots_) ::munmap(slots_, (mask_ + 1) * sizeof(Slot));
}

void FlightRing::Forget() {
  if (slots_) ::madvise(slots_, (mask_ + 1) * sizeof(Slot), MADV_DONTNEED);
}

template <size_t words>
size_t FlightRing::Put(std::string_view text, std::atomic<uint64_t> (&to)[words]) {
  if (text.size() > sizeof to) text.remove_prefix(text.size() - sizeof to);
  uint64_t packed[words] = {};
  std::memcpy(packed, text.data(), text.size());
  for (size_t word = 0; word < (text.size() + 7) / 8; ++word)
    to[word].store(packed[word], std::memory_order_release);
  return text.size();
}

template <size_t words>
std::string FlightRing::Get(const std::atomic<uint64_t> (&from)[words], size_t length) {
  uint64_t packed[words] = {};
  for (size_t word = 0; word < words; ++word)
    packed[word] = from[word].load(std::memory_order_acquire);
  return {reinterpret_cast<const char*>(packed), std::min(length, sizeof packed)};
}

// A slot has one writer at a time: a writer that is a whole round behind or ahead of another drops
// its event. The fields are stored with release, so that none is seen before kWriting, and read
// with acquire, so that the number is read again after them: with the same number before and after,
// the slot is consistent, but for an event that was added meanwhile.
bool FlightRing::Take(Slot& slot, uint64_t before) {
  return slot.number.compare_exchange_strong(before, kWriting, std::memory_order_acquire,
                                             std::memory_order_relaxed);
}

uint64_t FlightRing::Write(const Event& event) {
  const uint64_t number = next_.fetch_add(1, std::memory_order_relaxed) + 1;
  Slot& slot = slots_[number & mask_];
  const uint64_t before = slot.number.load(std::memory_order_relaxed);
  if (before == kWriting || before > number || !Take(slot, before)) return 0;
  slot.ticks.store(clock_.Now(), std::memory_order_release);
  slot.agreed_ticks.store(0, std::memory_order_release);
  slot.done_ticks.store(0, std::memory_order_release);
  slot.bucket.store(event.bucket, std::memory_order_release);
  slot.waited_ns.store(0, std::memory_order_release);
  slot.bytes.store(event.value, std::memory_order_release);
  const uint64_t name = event.tensor.empty() ? 0 : Put(event.tensor, slot.name);
  const uint64_t detail = event.detail.empty() ? 0 : Put(event.detail, slot.detail);
  const uint64_t type = event.type ? static_cast<uint64_t>(*event.type) + 1 : 0;
  slot.head.store(static_cast<uint64_t>(event.process_set) << 32 | type << 24 | name << 16 |
                      detail << 8 | static_cast<uint64_t>(event.phase),
                  std::memory_order_release);
  slot.number.store(number, std::memory_order_release);
  return number;
}

bool FlightRing::Add(uint64_t number, const Event& event) {
  const bool agreed = event.phase == Phase::kNegotiated;
  if (number == 0 || !(agreed || event.phase == Phase::kExecuted)) return false;
  Slot& slot = slots_[number & mask_];
  if (!Take(slot, number)) return false;
  // The bucket before the stamp: a reader that sees the stamp sees the bucket.
  slot.bucket.store(event.bucket, std::memory_order_release);
  (agreed ? slot.agreed_ticks : slot.done_ticks).store(clock_.Now(), std::memory_order_release);
  slot.number.store(number, std::memory_order_release);
  return true;
}

void FlightRing::AddWait(uint64_t number, int64_t ns) {
  if (number == 0) return;
  Slot& slot = slots_[number & mask_];
  if (!Take(slot, number)) return;
  slot.waited_ns.store(slot.waited_ns.load(std::memory_order_relaxed) + ns,
                       std::memory_order_release);
  slot.number.store(number, std::memory_order_release);
}

std::vector<FlightRing::Record> FlightRing::Read() const {
  std::vector<Record> records;
  if (!on()) return records;
  const TickClock::Reading reading(clock_);
  const uint64_t end = next_.load(std::memory_order_acquire);
  for (uint64_t number = end > mask_ ? end - mask_ : 1; number <= end; ++number) {
    const Slot& slot = slots_[number & mask_];
    if (slot.number.load(std::memory_order_acquire) != number) continue;
    Record record;
    const uint64_t head = slot.head.load(std::memory_order_acquire);
    record.phase = static_cast<Phase>(head & 0xff);
    record.process_set = static_cast<uint32_t>(head >> 32);
    const int64_t ticks = slot.ticks.load(std::memory_order_acquire);
    const int64_t agreed = slot.agreed_ticks.load(std::memory_order_acquire);
    const int64_t done = slot.done_ticks.load(std::memory_order_acquire);
    const uint64_t bucket = slot.bucket.load(std::memory_order_acquire);
    const int64_t waited = slot.waited_ns.load(std::memory_order_acquire);
    const uint64_t bytes = slot.bytes.load(std::memory_order_acquire);
    const auto type = static_cast<uint8_t>(head >> 24);
    record.tensor = Get(slot.name, head >> 16 & 0xff);
    record.detail = Get(slot.detail, head >> 8 & 0xff);
    if (slot.number.load(std::memory_order_relaxed) != number) continue;
    record.time_ns = reading.ToNs(ticks);
    record.bucket = record.phase == Phase::kQueued ? 0 : bucket;  // there was none yet
    if (record.phase == Phase::kQueued) {
      record.bytes = bytes;
      if (type != 0) record.type = static_cast<DType>(type - 1);
    }
    records.push_back(record);
    record.detail.clear();
    record.bytes = 0;
    record.type.reset();
    record.bucket = bucket;
    for (const auto& [phase, stamp] :
         {std::pair{Phase::kNegotiated, agreed}, std::pair{Phase::kExecuted, done}}) {
      if (stamp == 0) continue;
      record.phase = phase;
      record.waited_ns = phase == Phase::kExecuted ? waited : 0;
      record.time_ns = reading.ToNs(stamp);
      records.push_back(record);
    }
  }
  std::ranges::stable_sort(records, {}, &Record::time_ns);
  return records;
}

}  // namespace horoacc
