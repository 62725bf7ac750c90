// What an error says besides its text: of which call, and on which host to look.
#include "runtime/engine/engine.h"

namespace horoacc {

// A call that the ranks had not agreed on would have been the next.
Error Engine::AnnotateError(Error error, const ProcessSet* set, const Entry* entry) const {
  if (error.host.empty() && error.culprit >= 0 && error.culprit < static_cast<int>(hosts_.size())) {
    error.host = hosts_[error.culprit];
  }
  if (entry && error.tensor.empty()) error.tensor = entry->display_name;
  if (error.collective < 0 && entry && entry->bucket > 0)
    error.collective = static_cast<int64_t>(entry->bucket);
  if (error.collective < 0 && set)
    error.collective = static_cast<int64_t>(set->buckets_run.load(std::memory_order_relaxed)) + 1;
  return error;
}

Error Engine::AnnotateRefusal(Error error, const ProcessSet* set, const std::string& tensor) const {
  if (error.tensor.empty()) error.tensor = tensor;
  return AnnotateError(std::move(error), set, nullptr);
}

}  // namespace horoacc
