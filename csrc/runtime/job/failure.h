#pragma once
// Why this rank's engine can do nothing more, and how the other ranks hear of it.
#include <atomic>
#include <mutex>
#include <optional>
#include <string>

#include "base/result.h"
#include "runtime/job/job.h"

namespace horoacc {

struct Entry;
struct ProcessSet;

/// Any thread, unless said otherwise.
class Failure {
 public:
  explicit Failure(Job& job) : job_(job) {}

  /// Aborts the job: every rank ends its calls with `error`.
  void Abort(const Error& error);
  /// The same after a link has failed. Its other end may have been told earlier why the job is
  /// over, and have ended: what arrives within kNewsLimit says it, and names the rank at fault.
  /// Under the driver's lock.
  void AbortUnlessTold(const Error& error);
  /// Aborts the ranks of this host. True if no rank had aborted before.
  bool AbortHere(const Error& error);
  /// An exception of the standard library left the engine: the other ranks count on this one.
  Error AbortThrown(const char* what) noexcept;

  /// Remembers why this engine ends. True for the first error.
  bool Record(const Error& error);
  [[nodiscard]] std::optional<Error> recorded() const {
    return failed_.load(std::memory_order_acquire) ? Read() : std::nullopt;
  }
  /// Runs `begin` unless the engine has failed; an error that is recorded meanwhile comes later.
  template <typename Begin>
  [[nodiscard]] Status UnlessFailed(Begin begin) {
    std::lock_guard lock(mutex_);
    return failure_ ? Status(*failure_) : begin();
  }

  /// Adds to an error the call, its number in the set, and the host of the culprit. A call that the
  /// ranks had not agreed on would have been the next. `set` and `entry` may be null.
  [[nodiscard]] Error Annotate(Error error, const ProcessSet* set, const Entry* entry) const;
  /// The same for a call that is not taken any more.
  [[nodiscard]] Error AnnotateRefusal(Error error, const ProcessSet* set,
                                      const std::string& tensor) const;

 private:
  [[nodiscard]] std::optional<Error> Read() const;

  Job& job_;
  mutable std::mutex mutex_;
  std::atomic<bool> failed_{false};  ///< there is a failure_
  std::optional<Error> failure_;
};

}  // namespace horoacc
