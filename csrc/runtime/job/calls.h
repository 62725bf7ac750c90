#pragma once
// Calls of collectives, as a framework makes them.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "queue/entry.h"

namespace horoacc {

/// One call as the framework makes it.
struct Submission {
  uint32_t process_set = 0;
  std::string name;      ///< empty: unnamed
  bool grouped = false;  ///< the name is that of the first of n tensors, and ends in "_1of<n>"
  Request request;
  struct Buffers {
    const void* input = nullptr;
    void* output = nullptr;  ///< nullptr: the engine allocates
  };
  Few<Buffers> buffers;  ///< one for every tensor of the request
  std::function<void()> done;
  double limit_seconds = 0;  ///< after which the call is given up; 0: never
  uint64_t proposal = 0;     ///< of a plan; 0: none
  Recurs recurs = Recurs::kNo;
  std::vector<std::shared_ptr<CollectiveEntry>> doubts;  ///< of a refusal: see CollectiveEntry
  /// The GPU in whose memory the buffers lie, and the stream on which they become ready.
  struct Device {
    int number = 0;
    void* stream = nullptr;
  };
  std::optional<Device> device;
};

/// From a call to its outcome. Any thread.
class Calls {
 public:
  virtual ~Calls() = default;
  /// Publishes the call and returns its handle at once.
  virtual Result<uint64_t> Submit(Submission submission) = 0;
  /// kTimeout at the deadline (the handle stays); else the call's outcome.
  virtual Status Wait(uint64_t handle, int64_t deadline_ns) = 0;
  /// Null: unknown handle.
  [[nodiscard]] virtual std::shared_ptr<Entry> Find(uint64_t handle) const = 0;
  virtual void Release(uint64_t handle) = 0;
  /// What other ranks have done with a named call that this rank has not submitted.
  enum class Others : uint8_t { kNothing, kSubmitted, kRefused };
  [[nodiscard]] virtual Others OthersIn(uint32_t process_set, const std::string& name) const = 0;
};

/// A call that waits for tensors of this rank, as a locked plan does.
struct OpenBucket {
  std::string name;
  std::string lacks;  ///< names of tensors: "'b', 'c' and 3 more"
  Calls::Others others = Calls::Others::kNothing;
};

/// Of the locked plans of a rank.
struct PlansState {
  std::vector<OpenBucket> open;
  std::string left;  ///< why this rank has left one, the last time
};

}  // namespace horoacc
