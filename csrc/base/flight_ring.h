#pragma once
// The latest events of a rank, kept in memory for the flight record. The events of a call share a
// slot, so that a call writes to one place of memory, and its name once.
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/tick_clock.h"

namespace horoacc {

struct Event;
enum class Phase : uint8_t;

/// Writers never wait, neither for each other nor for a reader. Of a long name the end is kept.
class FlightRing {
 public:
  struct Record {
    Phase phase{};
    int64_t time_ns = 0;
    uint32_t process_set = 0;
    uint64_t bucket = 0;
    int64_t waited_ns = 0;  ///< of kExecuted: how long callers were blocked in the call
    uint64_t bytes = 0;     ///< of kQueued, as the next
    std::optional<DType> type{};
    std::string tensor;
    std::string detail;
  };

  /// Room for at least so many calls, or events that are no call's; 0: nothing is kept.
  explicit FlightRing(size_t slots);
  ~FlightRing();
  FlightRing(const FlightRing&) = delete;
  FlightRing& operator=(const FlightRing&) = delete;
  [[nodiscard]] bool on() const { return slots_ != nullptr; }
  /// Frees the memory; later writes go to new pages.
  void Forget();
  /// Stores the event, with a stamp of its own. Returns the slot's number, from 1; 0 if the slot
  /// was busy.
  uint64_t Write(const Event& event);
  /// Adds an event to the slot `number` of its call. False if the slot was reused, or has no room
  /// for this phase.
  [[nodiscard]] bool Add(uint64_t number, const Event& event);
  /// Adds to the time that callers were blocked in a call.
  void AddWait(uint64_t number, int64_t ns);
  /// All events, oldest first. Any thread.
  [[nodiscard]] std::vector<Record> Read() const;

 private:
  static constexpr uint64_t kWriting = UINT64_MAX;
  static constexpr size_t kNameWords = 14;
  static constexpr size_t kDetailWords = 2;

  struct alignas(64) Slot {
    std::atomic<uint64_t> number{0};  ///< counts slots over all rounds; 0: unused
    std::atomic<uint64_t> head;       ///< phase, lengths of the texts, type, process set
    std::atomic<int64_t> ticks;
    std::atomic<int64_t> agreed_ticks, done_ticks;  ///< 0: not yet
    std::atomic<uint64_t> bucket;
    std::atomic<int64_t> waited_ns;
    std::atomic<uint64_t> bytes;
    std::atomic<uint64_t> detail[kDetailWords];
    std::atomic<uint64_t> name[kNameWords];
  };
  static_assert(sizeof(Slot) == 192);

  static bool Take(Slot& slot, uint64_t before);
  template <size_t words>
  static size_t Put(std::string_view text, std::atomic<uint64_t> (&to)[words]);
  template <size_t words>
  static std::string Get(const std::atomic<uint64_t> (&from)[words], size_t length);

  TickClock clock_;
  size_t mask_ = 0;
  Slot* slots_ = nullptr;  ///< pages of their own, zero as they come
  std::atomic<uint64_t> next_{0};
};

}  // namespace horoacc
