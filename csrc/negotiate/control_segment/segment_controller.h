#pragma once
// The controller inside a host: readiness is counted in shared memory, and the rank that completes
// a count decides. No message, no leader, no wake-up before the work is done if it is small.
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "base/settings.h"
#include "negotiate/control_segment/set_segment.h"
#include "negotiate/controller.h"
#include "negotiate/decider.h"
#include "transport/wake/doorbell.h"

namespace horoacc {

class SegmentController final : public Controller {
 public:
  /// `global_ranks`: by index, for error texts.
  SegmentController(SetSegment& control, const SetContext& context, const Doorbells& doorbells,
                    const Settings& settings, std::vector<int> global_ranks);

  Result<Announced> Announce(const Announcement& announcement) override;
  Status Unblock(std::span<const uint32_t> in_flight) override;
  Status Join(uint64_t unnamed) override;
  Status Pump() override;
  Result<std::optional<Decision>> Next() override;
  Status Reject(TensorKey tensor, const Error& error) override;
  Status Finish(const Decision& decision) override;
  [[nodiscard]] SetEnd Ended() override {
    return control_.header().end.load(std::memory_order_acquire);
  }

 private:
  /// Holds the set's lock, and rings the members that are to be rung once it is free: a rank that
  /// is woken may take this thread's core at once, and then all ranks would wait for the lock.
  class RingingLock {
   public:
    explicit RingingLock(SegmentController& controller)
        : controller_(controller), guard_(std::in_place, controller.control_) {}
    ~RingingLock();
    RingingLock(const RingingLock&) = delete;
    RingingLock& operator=(const RingingLock&) = delete;
    [[nodiscard]] const Status& status() const { return guard_->status(); }

   private:
    SegmentController& controller_;
    std::optional<SetSegment::Guard> guard_;
  };
  enum class Ring : uint8_t { kNo, kQuiet, kWork };

  // All under the set's lock.
  void Decide(std::span<const uint32_t> ready);
  bool DecideOne(uint32_t item);
  void Consider(uint32_t id);
  bool EndJoin();
  void PublishRun(const Bucket& bucket);
  void PublishError(TensorKey key, const Error& error);
  void Publish(const Decision& decision, std::span<const TensorKey> keys);
  void RejectNow(TensorKey key, const Error& error);
  void Append(std::span<const uint32_t> words);
  void RingMembers(std::span<const TensorKey> keys, bool work);
  [[nodiscard]] bool HasRoom() const;
  [[nodiscard]] uint64_t GenerationOf(uint32_t id) const;

  SetSegment& control_;
  const SetContext& context_;
  const Doorbells& doorbells_;
  Decider decider_;
  std::vector<int> global_ranks_;
  std::vector<Ring> rings_;  ///< by index: how to wake it; under the set's lock
  uint64_t taken_ = 0;       ///< words of the log that this rank has taken
  std::deque<std::pair<TensorKey, Error>> rejections_;  ///< the driver's; they wait for room
};

}  // namespace horoacc
