#pragma once
// A binding's reference to an engine that it did not make.
#include <utility>

#include "api/horoacc.h"

namespace horoacc {

/// Keeps an engine alive; empty if the engine is gone, or the pointer is null.
class EngineRef {
 public:
  explicit EngineRef(ha_engine* engine)
      : engine_(engine != nullptr && ha_engine_ref(engine) != 0 ? engine : nullptr) {}
  EngineRef(const EngineRef& other) : EngineRef(other.engine_) {}
  EngineRef(EngineRef&& other) noexcept : engine_(std::exchange(other.engine_, nullptr)) {}
  EngineRef& operator=(EngineRef other) noexcept {
    std::swap(engine_, other.engine_);
    return *this;
  }
  ~EngineRef() {
    if (engine_ != nullptr) ha_engine_unref(engine_);
  }

  [[nodiscard]] ha_engine* get() const { return engine_; }
  explicit operator bool() const { return engine_ != nullptr; }

 private:
  ha_engine* engine_;
};

}  // namespace horoacc
