#pragma once
// Production code as a process of a model. A step of the model is one access to shared memory, so a
// call of production code takes as many steps as it makes accesses: each step runs the call from
// its beginning, gives it the logged results of the accesses of earlier steps, lets it make one
// more and cuts it off behind that.
#include <atomic>
#include <cstdint>
#include <utility>

namespace horoacc::model {

/// The results of a call's accesses so far. Bytes only, as a part of a State.
template <uint32_t kMost>
struct AccessLog {
  static constexpr uint32_t kSize = kMost;
  uint8_t count = 0;
  uint8_t value[kMost] = {};
};

/// The accesses of one step. A call that is cut off sees zeros, with which it must end, and changes
/// nothing that is shared.
class Accesses {
 public:
  template <typename Log>
  explicit Accesses(Log& log) : count_(log.count), value_(log.value) {}

  /// `access` gives a byte.
  template <typename Access>
  uint8_t Do(const Access& access) {
    if (at_ < count_) return value_[at_++];
    cut_ = cut_ || made_;
    if (cut_) return 0;
    made_ = true;
    ++count_;
    return value_[at_++] = access();
  }
  /// The last access cannot be made yet, or was made in vain.
  void Block() { cut_ = blocked_ = true; }

  [[nodiscard]] bool cut() const { return cut_; }
  [[nodiscard]] bool blocked() const { return blocked_; }
  /// An access that is not logged would be made now.
  [[nodiscard]] bool fresh() const { return !cut_ && !made_ && at_ == count_; }

 private:
  uint8_t& count_;
  uint8_t* const value_;
  uint8_t at_ = 0;
  bool made_ = false;
  bool cut_ = false;
  bool blocked_ = false;
};

/// Runs `call(object, accesses)` for one step more. True: it has returned, and `object` and
/// `*result` are as it left them.
template <typename Object, typename Log, typename Call, typename Answer>
bool Resume(Object& object, Log& log, const Call& call, Answer* result) {
  Object copy = object;
  Accesses accesses(log);
  *result = call(copy, accesses);
  if (accesses.cut()) return false;
  object = copy;
  log = {};
  return true;
}

/// A byte of a State in the place of a std::atomic. The model's order is sequential.
struct ModelAtomic {
  uint8_t& byte;
  Accesses& accesses;

  uint8_t load(std::memory_order) const {
    return accesses.Do([&] { return byte; });
  }
  void store(uint64_t value, std::memory_order) const { exchange(value, {}); }
  uint8_t exchange(uint64_t value, std::memory_order) const {
    return accesses.Do([&] { return std::exchange(byte, static_cast<uint8_t>(value)); });
  }
  bool compare_exchange_weak(uint32_t& expected, uint32_t desired, std::memory_order) const {
    const uint8_t was = accesses.Do([&] {
      return byte == expected ? std::exchange(byte, static_cast<uint8_t>(desired)) : byte;
    });
    return std::exchange(expected, was) == was;
  }
  uint8_t fetch_add(uint8_t more, std::memory_order) const {
    return accesses.Do([&] { return std::exchange(byte, static_cast<uint8_t>(byte + more)); });
  }
  uint8_t fetch_sub(uint8_t less, std::memory_order order) const {
    return fetch_add(static_cast<uint8_t>(-less), order);
  }
};

}  // namespace horoacc::model
