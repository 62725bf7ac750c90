#pragma once
// Ends a caller's wait for other ranks during rendezvous: on Ctrl-C.
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/result.h"

namespace horoacc {

/// Polled now and then by the waiting thread. Copies share one state.
class Cancellation {
 public:
  Cancellation() = default;  ///< never cancelled
  Cancellation(std::function<bool()> asks, int rank)
      : caller_(asks ? std::make_shared<Caller>(std::move(asks), rank) : nullptr) {}

  [[nodiscard]] bool Possible() const { return caller_ != nullptr; }
  /// kAborted if cancelled. It stays so without asking again, for the waits of the clean-up.
  [[nodiscard]] Status Check() const {
    if (!caller_) return {};
    caller_->cancelled = caller_->cancelled || caller_->asks();
    if (!caller_->cancelled) return {};
    return MakeError(ErrorKind::kAborted,
                     "rank " + std::to_string(caller_->rank) + " was interrupted in init()",
                     caller_->rank);
  }

 private:
  struct Caller {
    Caller(std::function<bool()> question, int own) : asks(std::move(question)), rank(own) {}
    std::function<bool()> asks;
    int rank;
    bool cancelled = false;
  };
  std::shared_ptr<Caller> caller_;
};

}  // namespace horoacc
