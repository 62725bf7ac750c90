#include "runtime/job/failure.h"

#include <chrono>
#include <thread>

#include "base/clock.h"
#include "runtime/sets/process_set.h"

namespace horoacc {
namespace {

/// A rank that has failed is told of within some milliseconds; on a busy machine in more.
constexpr int64_t kNewsLimit = kSecond / 5;

}  // namespace

void Failure::Abort(const Error& error) {
  if (AbortHere(error) && job_.multi_host) job_.multi_host->channel().TellAbort(error);
}

void Failure::AbortUnlessTold(const Error& error) {
  if (error.kind == ErrorKind::kPeerLost && job_.multi_host) {
    for (const int64_t limit = NowNs() + kNewsLimit; !job_.aborted() && NowNs() < limit;) {
      const Result<bool> heard = job_.mux->Pump();
      if (!heard.ok() || !heard.value()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  Abort(error);
}

bool Failure::AbortHere(const Error& error) {
  const bool first = job_.control.Abort(error);
  job_.RingAll(Urgency::kWork);
  if (first) job_.log.Write(LogLevel::kError, "the job is aborted: " + error.message);
  return first;
}

Error Failure::AbortThrown(const char* what) noexcept {
  try {
    Error error = MakeError(
        ErrorKind::kSystem,
        "rank " + std::to_string(job_.rank()) + " cannot go on: its engine failed with " + what,
        job_.rank());
    (void)AbortHere(error);
    // Also if the abort was there already: a lock that the exception passed through makes one.
    if (job_.multi_host) job_.multi_host->channel().TellAbort(error);
    return error;
  } catch (const std::exception&) {
    Error error;  // whose text is short enough to need no memory
    error.kind = ErrorKind::kSystem;
    error.culprit = job_.rank();
    error.message = "out of memory";
    job_.control.Abort(error);
    job_.RingAll(Urgency::kWork);
    return error;
  }
}

bool Failure::Record(const Error& error) {
  std::lock_guard lock(mutex_);
  if (failure_) return false;
  failure_ = error;
  failed_.store(true, std::memory_order_release);
  return true;
}

std::optional<Error> Failure::Read() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

Error Failure::Annotate(Error error, const ProcessSet* set, const Entry* entry) const {
  const CollectiveEntry* const collective = AsCollective(entry);
  if (error.host.empty() && error.culprit >= 0 && error.culprit < job_.placement.size)
    error.host = job_.HostOf(error.culprit);
  if (entry && error.tensor.empty()) error.tensor = entry->display_name;
  if (error.collective < 0 && collective && collective->bucket > 0)
    error.collective = static_cast<int64_t>(collective->bucket);
  if (error.collective < 0 && set)
    error.collective = static_cast<int64_t>(set->buckets_run.load(std::memory_order_relaxed)) + 1;
  return error;
}

Error Failure::AnnotateRefusal(Error error, const ProcessSet* set,
                               const std::string& tensor) const {
  if (error.tensor.empty()) error.tensor = tensor;
  return Annotate(std::move(error), set, nullptr);
}

}  // namespace horoacc
