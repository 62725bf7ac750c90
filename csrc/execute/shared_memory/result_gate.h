#pragma once
// Whether the results of a run may go to the ranks' own memory, if hosts begin it before they know
// that all others do: a word in the run's slot.
#include <atomic>
#include <cstdint>

namespace horoacc {

/// A result holds the inputs of all hosts, so the first rank that has one knows that all have begun
/// the run, and opens the gate for good, unless the host's leader has held it: then the leader
/// decides. `Word`: std::atomic<uint32_t>, or a model's.
template <typename Word>
class ResultGate {
 public:
  explicit ResultGate(Word& word) : word_(word) {}

  enum class Passage : uint8_t { kOpen, kHeld, kDropped };
  /// This rank has results of the run: may it store them? kDropped: never.
  [[nodiscard]] Passage Pass() {
    uint32_t seen = kUntouched;
    if (word_.compare_exchange_strong(seen, kOpened, std::memory_order_acq_rel) || seen == kOpened)
      return Passage::kOpen;
    return seen == kIsHeld ? Passage::kHeld : Passage::kDropped;
  }
  [[nodiscard]] bool opened() const { return word_.load(std::memory_order_acquire) == kOpened; }
  [[nodiscard]] bool dropped() const { return word_.load(std::memory_order_acquire) == kIsDropped; }

  [[nodiscard]] bool held() const { return word_.load(std::memory_order_acquire) == kIsHeld; }

  // The leader's.
  /// False: a rank has opened it, for all.
  bool Hold() {
    uint32_t seen = kUntouched;
    return word_.compare_exchange_strong(seen, kIsHeld, std::memory_order_acq_rel);
  }
  /// After Hold.
  void Open() { word_.store(kOpened, std::memory_order_release); }
  void Drop() { word_.store(kIsDropped, std::memory_order_release); }

 private:
  static constexpr uint32_t kUntouched = 0, kOpened = 1, kIsHeld = 2, kIsDropped = 3;
  Word& word_;
};

}  // namespace horoacc
