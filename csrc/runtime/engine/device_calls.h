#pragma once
// Calls whose tensors lie on a GPU: copied to memory that the ranks see, published once they are
// there, and copied back. In between they are calls like any other.
#include <algorithm>
#include <memory>
#include <span>

#include "execute/cuda/device/gpus.h"
#include "runtime/engine/publisher.h"
#include "runtime/job/calls.h"
#include "runtime/sets/multi_host_run.h"

namespace horoacc {

class DeviceCalls {
 public:
  explicit DeviceCalls(Job& job);

  /// A GPU mode that the settings order and this set cannot have is an error of the first call, on
  /// all ranks alike.
  [[nodiscard]] Status CheckMode(const ProcessSet& set) const;
  /// Puts the host's memory in the place of the GPU's, before any other rank knows of the entry,
  /// and begins the copies to it.
  Status Begin(ProcessSet& set, CollectiveEntry& entry, const Submission& submission);
  /// The entry waits for its copies, or behind a call of its name that does. Under the queue's
  /// lock.
  [[nodiscard]] static bool MustWait(const SetQueue& queue, const CollectiveEntry& entry) {
    if (entry.device && entry.device->has_host_memory()) return true;
    return std::ranges::any_of(queue.pending_copies,
                               [&](const auto& other) { return other->id == entry.id; });
  }
  /// Publishes the entries whose copies have come. True if there was one. Under the driver's lock.
  Result<bool> PublishPending(ProcessSet& set) {
    return job_.gpu_polls.load(std::memory_order_relaxed) == 0 ? false : PublishCopied(set);
  }
  /// Begins the copies of a result to the GPU. Under the driver's lock.
  static Status CopyBack(CollectiveEntry& entry);

  /// Whether the request is reduced chunk by chunk while its copies come. All ranks agree.
  [[nodiscard]] bool IsPipelined(const Request& request) const;
  /// The same of a decision that the CPU carries out.
  [[nodiscard]] bool RunsPipelined(const ProcessSet& set, const Running& running) const {
    const Decision& decision = running.decision;
    return running.OnGpu() && !decision.done() &&
           (set.multi_host ? decision.path == Path::kSchedule : decision.shared) &&
           std::ranges::any_of(running.entries,
                               [&](const auto& entry) { return IsPipelined(entry->request); });
  }
  [[nodiscard]] std::unique_ptr<ChunkPipeline> PipelineOf(
      std::span<const MultiHostRun::Call> calls) const;

  /// Closes the GPUs: the engine has ended.
  void Close() { gpus_.Close(); }

 private:
  Result<bool> PublishCopied(ProcessSet& set);
  [[nodiscard]] bool StaysOnGpu(ProcessSet& set, const Request& request, int gpu) const;
  [[nodiscard]] Result<bool> MayBePublished(const ProcessSet& set, CollectiveEntry& entry) const;

  Job& job_;
  Publisher publisher_{job_};
  cuda::Gpus gpus_;
};

}  // namespace horoacc
