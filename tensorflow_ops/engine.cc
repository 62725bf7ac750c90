#include "engine.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "absl/strings/cord.h"

namespace horoacc {
namespace {

// Process-wide, because TensorFlow makes the kernels and knows no engine. The engine may be freed
// before a kernel uses it; so a kernel takes a ref first.
std::atomic<ha_engine*>& Attached() {
  static std::atomic<ha_engine*> engine{nullptr};
  return engine;
}

// The codes are those that scripts written for Horovod catch.
absl::StatusCode CodeOf(int32_t kind) {
  switch (kind) {
    case HA_MISMATCH:
    case HA_CONFIG:
      return absl::StatusCode::kFailedPrecondition;
    case HA_INVALID:
      return absl::StatusCode::kInvalidArgument;
    case HA_TIMEOUT:
      return absl::StatusCode::kDeadlineExceeded;
    case HA_UNSUPPORTED:
      return absl::StatusCode::kUnimplemented;
    default:
      return absl::StatusCode::kUnknown;
  }
}

}  // namespace

EngineRef TheEngine() { return EngineRef(Attached().load(std::memory_order_acquire)); }

absl::Status NotInitialized() {
  return absl::FailedPreconditionError("Horovod has not been initialized; use hvd.init().");
}

absl::Status StatusOf(const ha_error& error) {
  absl::Status status(CodeOf(error.kind), error.message);
  // From a view: TensorFlow's libraries lack Cord's constructor from a string.
  const auto put = [&](const char* key, const std::string& text) {
    status.SetPayload(key, absl::Cord(absl::string_view(text)));
  };
  put("horoacc/kind", std::to_string(error.kind));
  put("horoacc/culprit", std::to_string(error.culprit));
  put("horoacc/collective", std::to_string(error.collective));
  put("horoacc/host", error.host);
  put("horoacc/tensor", error.tensor);
  put("horoacc/hint", error.hint);
  return status;
}

int32_t RankOf(const ha_engine* engine) {
  int32_t placement[6];
  ha_engine_placement(engine, placement);
  return placement[0];
}

std::vector<int32_t> RanksOf(const ha_engine* engine, int32_t process_set) {
  const int32_t size = ha_process_set_ranks(engine, process_set, nullptr, 0);
  std::vector<int32_t> ranks(static_cast<size_t>(std::max(size, 0)));
  ha_process_set_ranks(engine, process_set, ranks.data(), ranks.size());
  return ranks;
}

}  // namespace horoacc

extern "C" {

// Kernels submit to this engine from now on; NULL: to none.
HA_API void ha_tensorflow_attach(ha_engine* engine) {
  horoacc::Attached().store(engine, std::memory_order_release);
}

}  // extern "C"
