#include "group.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>

namespace horoacc {
namespace {

constexpr double kTimeoutSeconds = 5;

}  // namespace

Group::Group(ha_engine* engine, int32_t process_set, std::vector<int32_t> ranks, int rank,
             double limit_seconds, std::string name, std::string backend)
    : engine_(engine),
      process_set_(process_set),
      ranks_(std::move(ranks)),
      rank_(rank),
      name_(std::move(name)),
      backend_(std::move(backend)),
      process_(getpid()),
      limit_seconds_(limit_seconds) {
  TORCH_CHECK(engine_, "the engine has been shut down");
}

// The engine, or a peer, may still use the memory of orphans.
Group::~Group() {
  Leave();
  if (getpid() != process_) return;
  for (Orphan& orphan : orphans_) {
    ha_error error{};
    ha_wait(engine(), orphan.handle, kTimeoutSeconds, &error);
    if (ha_poll(engine(), orphan.handle) == 0)
      new std::vector<at::Tensor>(std::move(orphan.tensors));
    ha_release(engine(), orphan.handle);
  }
}

int32_t Group::GlobalRank(int64_t rank) const {
  return rank >= 0 && rank < size() ? ranks_[static_cast<size_t>(rank)] : -1;
}

int Group::LocalRank(int32_t global_rank) const {
  const auto found = std::find(ranks_.begin(), ranks_.end(), global_rank);
  return found == ranks_.end() ? -1 : static_cast<int>(found - ranks_.begin());
}

void Group::Leave() {
  if (left_.exchange(true) || getpid() != process_) return;
  ha_error error{};
  // An engine that is shut down, or a job that is aborted, has no groups to leave.
  (void)ha_group_leave(engine(), process_set_, &error);
}

void Group::Adopt(ha_handle handle, std::vector<at::Tensor> tensors) {
  const std::scoped_lock lock(orphans_mutex_);
  orphans_.push_back({handle, std::move(tensors)});
  has_orphans_.store(true, std::memory_order_release);
}

void Group::Sweep() {
  if (!has_orphans_.load(std::memory_order_acquire)) return;
  std::vector<Orphan> done;  // frees tensors after the lock
  const std::scoped_lock lock(orphans_mutex_);
  const auto complete = [this](const Orphan& orphan) {
    return ha_poll(engine(), orphan.handle) != 0;
  };
  const auto first = std::stable_partition(orphans_.begin(), orphans_.end(),
                                           [&](const Orphan& o) { return !complete(o); });
  for (auto orphan = first; orphan != orphans_.end(); ++orphan) {
    ha_release(engine(), orphan->handle);
    done.push_back(std::move(*orphan));
  }
  orphans_.erase(first, orphans_.end());
  has_orphans_.store(!orphans_.empty(), std::memory_order_release);
}

void Group::Throw(const ha_error& error) const {
  // Programs look for torch's words.
  const char* const timed_out = error.kind == HA_TIMEOUT ? "Timed out waiting: " : "";
  const std::string text = "horoacc, process group '" + name_ + "', rank " + std::to_string(rank_) +
                           ": " + timed_out + error.message;
  const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  switch (error.kind) {
    case HA_INVALID:
      throw c10::ValueError(here, text);
    case HA_UNSUPPORTED:
      throw c10::NotImplementedError(here, text);
    default:
      throw c10::DistBackendError(here, text);
  }
}

}  // namespace horoacc
