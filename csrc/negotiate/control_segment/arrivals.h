#pragma once
// Who has come to the open generation of an id, in one word that ranks move by compare-and-swap.
#include <atomic>
#include <cstdint>

namespace horoacc {

/// Generations of an id are numbered from 1, and the numbers go on when the id changes its name.
class Arrivals {
 public:
  constexpr Arrivals() = default;

  /// Counts the names that the id has had, modulo 2^16.
  [[nodiscard]] uint32_t incarnation() const { return static_cast<uint32_t>(word_ >> 48); }
  /// Generations that are over; also the number of the last one.
  [[nodiscard]] uint64_t over() const { return word_ >> 16 & 0xffffffff; }
  /// The generation that ranks arrive in now.
  [[nodiscard]] uint64_t open() const { return over() + 1; }
  /// Ranks that have arrived in it.
  [[nodiscard]] uint32_t arrived() const { return static_cast<uint32_t>(word_ & kArrived); }

  [[nodiscard]] Arrivals OneMore() const { return Arrivals(word_ + 1); }
  /// The open generation is over.
  [[nodiscard]] Arrivals Closed() const { return Arrivals((word_ & ~kArrived) + kGeneration); }
  /// It is over, and nobody may use the one after it.
  [[nodiscard]] Arrivals ClosedWithNext() const {
    return Arrivals((word_ & ~kArrived) + 2 * kGeneration);
  }
  /// The id goes to another name. Only while nobody has arrived.
  [[nodiscard]] Arrivals Renamed() const { return Arrivals(word_ + kIdVersion); }

  bool operator==(const Arrivals&) const = default;

 private:
  static constexpr uint64_t kArrived = 0xffff;
  static constexpr uint64_t kGeneration = 1ull << 16;
  static constexpr uint64_t kIdVersion = 1ull << 48;

  explicit constexpr Arrivals(uint64_t word) : word_(word) {}

  uint64_t word_ = 0;  ///< incarnation << 48 | generations over << 16 | arrived
};
static_assert(std::atomic<Arrivals>::is_always_lock_free);

}  // namespace horoacc
