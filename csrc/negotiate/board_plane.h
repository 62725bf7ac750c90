#pragma once
// The plane inside a host: readiness is counted in shared memory, and the rank that completes a
// count decides. No message, no leader, no wake-up before the work is done if it is small.
#include <deque>
#include <utility>
#include <vector>

#include "base/settings.h"
#include "negotiate/decider.h"
#include "negotiate/plane.h"
#include "negotiate/set_board.h"
#include "transport/bell.h"

namespace horoacc {

class BoardPlane final : public Plane {
 public:
  /// `global_ranks`: by index, for error texts.
  BoardPlane(SetBoard& board, const SetContext& context, const Bells& bells,
             const Settings& settings, std::vector<int> global_ranks);

  Status Announce(const Announcement& announcement) override;
  Status Unblock(std::span<const uint32_t> in_flight) override;
  Status Pump() override;
  Result<std::optional<Decision>> Next() override;
  Status Reject(TensorKey tensor, const Error& error) override;
  Status Finish(const Decision& decision) override;
  [[nodiscard]] int Gone() override {
    return board_.header().gone.load(std::memory_order_acquire) - 1;
  }

 private:
  // All under the set's lock.
  void Decide(std::span<const uint32_t> ready);
  void DecideOne(uint32_t id);
  void PublishRun(const Bucket& bucket);
  void PublishError(TensorKey key, const Error& error);
  void Publish(const Decision& decision, std::span<const TensorKey> keys);
  void RejectNow(TensorKey key, const Error& error);
  void Append(std::span<const uint32_t> words);
  void RingMembers(std::span<const TensorKey> keys, bool work);
  [[nodiscard]] bool HasRoom() const;
  [[nodiscard]] uint64_t GenerationOf(uint32_t id) const;

  SetBoard& board_;
  const SetContext& context_;
  const Bells& bells_;
  Decider decider_;
  std::vector<int> global_ranks_;
  uint64_t taken_ = 0;  ///< words of the log that this rank has taken
  std::deque<std::pair<TensorKey, Error>> rejections_;  ///< the driver's; they wait for room
};

}  // namespace horoacc
