#pragma once
// A caller who waits for other ranks while the job comes together, and is called away: by Ctrl-C.
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/result.h"

namespace horoacc {

/// Asked now and then, on the thread that waits. Copies stand for the same caller.
class Cancellation {
 public:
  Cancellation() = default;  ///< nobody calls
  Cancellation(std::function<bool()> asks, int rank)
      : caller_(asks ? std::make_shared<Caller>(std::move(asks), rank) : nullptr) {}

  [[nodiscard]] bool Possible() const { return caller_ != nullptr; }
  /// kAborted if so. Once away the caller is not asked again: what is waited for after that is only
  /// taken back.
  [[nodiscard]] Status Check() const {
    if (!caller_) return {};
    caller_->away = caller_->away || caller_->asks();
    if (!caller_->away) return {};
    return MakeError(ErrorKind::kAborted,
                     "rank " + std::to_string(caller_->rank) + " was called away from init()",
                     caller_->rank);
  }

 private:
  struct Caller {
    Caller(std::function<bool()> question, int own) : asks(std::move(question)), rank(own) {}
    std::function<bool()> asks;
    int rank;
    bool away = false;
  };
  std::shared_ptr<Caller> caller_;
};

}  // namespace horoacc
