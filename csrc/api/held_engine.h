#pragma once
// A binding's hold on an engine that it was told of.
#include <utility>

#include "api/horoacc.h"

namespace horoacc {

/// None if the engine is gone, or there was none. It stays as long as one of these has it.
class HeldEngine {
 public:
  explicit HeldEngine(ha_engine* engine)
      : engine_(engine != nullptr && ha_engine_hold(engine) != 0 ? engine : nullptr) {}
  HeldEngine(const HeldEngine& other) : HeldEngine(other.engine_) {}
  HeldEngine(HeldEngine&& other) noexcept : engine_(std::exchange(other.engine_, nullptr)) {}
  HeldEngine& operator=(HeldEngine other) noexcept {
    std::swap(engine_, other.engine_);
    return *this;
  }
  ~HeldEngine() {
    if (engine_ != nullptr) ha_engine_let_go(engine_);
  }

  [[nodiscard]] ha_engine* get() const { return engine_; }
  explicit operator bool() const { return engine_ != nullptr; }

 private:
  ha_engine* engine_;
};

}  // namespace horoacc
