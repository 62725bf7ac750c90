#pragma once
// The ranks that have arrived in the open generation of an id, in one word that ranks move by
// compare-and-swap.
#include <atomic>
#include <cstdint>

namespace horoacc {

/// Generations of an id are numbered from 1, and the numbers go on when the id changes its name.
/// Behind the highest comes 2: 0 means none, and a call and the one before it differ in parity. The
/// number of bits is a parameter so that model checks can run this class on smaller words.
template <typename Word, int kArrivedBits, int kGenerationBits>
class ArrivalsIn {
 public:
  constexpr ArrivalsIn() = default;

  /// Counts the names that the id has had, modulo the bits that are left for it.
  [[nodiscard]] constexpr uint32_t id_version() const {
    return static_cast<uint32_t>(word_ / kIdVersion);
  }
  /// The number of the last generation that is over; 0: none is.
  [[nodiscard]] constexpr uint64_t over() const { return word_ % kIdVersion / kGeneration; }
  /// The generation that ranks arrive in now.
  [[nodiscard]] constexpr uint64_t open() const { return After(over()); }
  /// Ranks that have arrived in it.
  [[nodiscard]] constexpr uint32_t arrived() const {
    return static_cast<uint32_t>(word_ % kGeneration);
  }
  /// A rank that looked the id up may arrive in this generation of it.
  [[nodiscard]] constexpr bool Admits(uint32_t id_version, uint64_t generation) const {
    return this->id_version() == id_version && open() == generation;
  }

  /// One more rank arrives; the last of `ranks` closes the generation, so that arrived() is 0.
  [[nodiscard]] constexpr ArrivalsIn Arrive(uint32_t ranks) const {
    return arrived() + 1 == ranks ? Closed() : ArrivalsIn(word_ + 1);
  }
  /// The open generation is over.
  [[nodiscard]] constexpr ArrivalsIn Closed() const { return WithOver(open()); }
  /// It is over, and no rank may use the one after it.
  [[nodiscard]] constexpr ArrivalsIn ClosedWithNext() const { return WithOver(After(open())); }
  /// The id goes to another name. Only while no rank has arrived.
  [[nodiscard]] constexpr ArrivalsIn Renamed() const { return ArrivalsIn(word_ + kIdVersion); }

  bool operator==(const ArrivalsIn&) const = default;

 private:
  static constexpr uint64_t kGeneration = uint64_t{1} << kArrivedBits;
  static constexpr uint64_t kGenerations = uint64_t{1} << kGenerationBits;
  static constexpr uint64_t kIdVersion = kGeneration * kGenerations;

  [[nodiscard]] static constexpr uint64_t After(uint64_t generation) {
    return generation + 1 == kGenerations ? 2 : generation + 1;
  }
  /// No rank has arrived in the generation after `over`.
  [[nodiscard]] constexpr ArrivalsIn WithOver(uint64_t over) const {
    return ArrivalsIn(word_ - word_ % kIdVersion + over * kGeneration);
  }

  explicit constexpr ArrivalsIn(uint64_t word) : word_(static_cast<Word>(word)) {}

  Word word_ = 0;  ///< id version, generations over, arrived: from the highest bits to the lowest
};

using Arrivals = ArrivalsIn<uint64_t, 12, 36>;
static_assert(std::atomic<Arrivals>::is_always_lock_free);

}  // namespace horoacc
