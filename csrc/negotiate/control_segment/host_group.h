#pragma once
// The ranks of one process set on one host: they announce calls in shared memory, and read one log
// of decisions. A derived class says which rank decides.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "execute/execution.h"
#include "negotiate/control_segment/decision_log.h"
#include "negotiate/control_segment/set_segment.h"
#include "negotiate/controller.h"
#include "transport/wake/doorbell.h"

namespace horoacc {

class HostGroup : public Controller {
 public:
  Result<Announced> Announce(const Announcement& announcement) override;
  Status Join(uint64_t unnamed) override;
  Status Pump() override;
  Result<std::optional<Decision>> Next() override;
  Status Finish(const Decision& decision) override;
  [[nodiscard]] SetEnd Ended() override {
    return control_.header().end.load(std::memory_order_acquire);
  }

  enum class Ring : uint8_t { kNo, kQuiet, kWork };
  /// Holds the set's lock, and rings the members that are to be rung once it is free: a rank that
  /// is woken may take this thread's core at once, and then all ranks would wait for the lock.
  class RingingLock {
   public:
    explicit RingingLock(HostGroup& group) : group_(group), guard_(std::in_place, group.control_) {}
    ~RingingLock();
    RingingLock(const RingingLock&) = delete;
    RingingLock& operator=(const RingingLock&) = delete;
    [[nodiscard]] const Status& status() const { return guard_->status(); }

   private:
    HostGroup& group_;
    std::optional<SetSegment::Guard> guard_;
  };

  // For the rank that decides, or leads; all under the set's lock.
  void Publish(const Decision& decision, std::span<const TensorKey> keys, const LogNote& note = {});
  void RingMembers(std::span<const TensorKey> keys, bool work);
  void RingMember(uint32_t index, Ring ring) { rings_[index] = std::max(rings_[index], ring); }
  /// All ranks have joined; those of this host submit again.
  void ResetJoins();
  [[nodiscard]] const DecisionLog& log() const { return log_; }

 protected:
  /// `context`: of the members on this host.
  HostGroup(SetSegment& control, const SetContext& context, const Doorbells& doorbells);

  // All under the set's lock.
  /// Each rank of the group has submitted the call, or has joined (`partial`: at least one has).
  virtual void OnReady(TensorKey key, bool partial) = 0;
  /// Every call that is ready has been handed to OnReady, and maybe a rank has joined. False if
  /// there is no room to tell of that.
  virtual bool OnIdle() = 0;
  /// Is there room for whatever OnReady may write?
  [[nodiscard]] virtual bool HasRoom() const = 0;
  /// Hands calls that are ready to OnReady, as far as there is room.
  void Decide(std::span<const uint32_t> ready);
  [[nodiscard]] uint64_t GenerationOf(uint32_t id) const;

  SetSegment& control_;
  const SetContext& context_;
  DecisionLog log_;

 private:
  void Consider(uint32_t id);
  bool TakeItem(uint32_t item);

  const Doorbells& doorbells_;
  std::vector<Ring> rings_;  ///< by index: how to wake it; under the set's lock
};

}  // namespace horoacc
