#pragma once
// The controller inside a host: readiness is counted in shared memory, and the rank that completes
// a count decides. No message, no leader, no wake-up before the work is done if it is small.
#include <deque>
#include <utility>
#include <vector>

#include "base/settings.h"
#include "negotiate/control_segment/host_group.h"
#include "negotiate/decider.h"

namespace horoacc {

class SegmentController final : public HostGroup {
 public:
  /// `global_ranks`: by index, for error texts.
  SegmentController(SetSegment& control, const SetContext& context, const Doorbells& doorbells,
                    const Tuned& tuned, std::vector<int> global_ranks);

  Status Unblock(std::span<const uint32_t> in_flight) override;
  Status Pump() override;
  Status Reject(TensorKey tensor, const Error& error) override;
  Status End(SetEnd end) override;
  [[nodiscard]] Result<std::optional<Attendance>> WhoHas(std::optional<TensorKey> tensor) override;

 private:
  // All under the set's lock.
  void OnReady(TensorKey key, bool partial) override;
  bool OnIdle() override;
  [[nodiscard]] bool HasRoom() const override { return log_.HasRoom(); }
  void PublishRun(const Bucket& bucket);
  void PublishError(TensorKey key, const Error& error);
  void RejectNow(TensorKey key, const Error& error);

  Decider decider_;
  std::vector<int> global_ranks_;
  std::deque<std::pair<TensorKey, Error>> rejections_;  ///< the driver's; they wait for room
};

}  // namespace horoacc
