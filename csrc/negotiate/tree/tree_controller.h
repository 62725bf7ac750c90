#pragma once
// The message controller, over TCP or MPI: readiness climbs a tree of ranks, decisions come down.
#include <deque>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "negotiate/controller.h"
#include "negotiate/multi_host/control_mux.h"
#include "negotiate/tree/tree_root.h"
#include "negotiate/wire.h"
#include "transport/wake/doorbell.h"

namespace horoacc {

/// The first byte of a message.
enum class TreeMessage : uint8_t {
  kReady = 1,
  kSplit = 2,
  kDecision = 3,
  kPlan = 4,
  kEnd = 5,
  kReject = 6,
  kJoined = 7
};

inline void Put(WireWriter& writer, TensorKey key) {
  writer.Put(key.id);
  writer.Put(key.generation);
}

/// A rank tells its parent that a tensor is ready once it and all its children are: no rank
/// handles the messages of all. The root compares the requests, which it reads from the rows.
///
/// Ids and generations are the control segment's, which all ranks of the tree map. A generation
/// that is closed by force is over at once, and its rejection arrives later: every rank must expect
/// that a call of the next generation overtakes the rejection.
class TreeController final : public Controller {
 public:
  TreeController(ControlMux& mux, uint32_t process_set, SetSegment& control,
                 const SetContext& context, const Doorbells& doorbells, const Settings& settings,
                 std::vector<int> global_ranks);
  ~TreeController() override;

  Result<Announced> Announce(const Announcement& announcement) override;
  Status Unblock(std::span<const uint32_t> in_flight) override;
  Status Join(uint64_t unnamed) override;
  Status Pump() override;
  Result<std::optional<Decision>> Next() override;
  Status Reject(TensorKey tensor, const Error& error) override;
  Status Finish(const Decision& decision) override;
  [[nodiscard]] SetEnd Ended() override;

 private:
  // The branches of this rank's part of the tree, as bits: itself, then its children.
  static constexpr uint32_t kOwnBranch = 1;
  [[nodiscard]] uint32_t AllBranches() const { return (2u << Children().size()) - 1; }
  /// Of a child; 0 for any other rank.
  [[nodiscard]] uint32_t BranchOf(int global_rank) const;

  /// A call on its way up, as far as this rank's branch knows.
  struct Pending {
    uint64_t generation = 0;
    uint32_t arrived = 0;  ///< branches that are ready
  };

  // All under mutex_.
  Status OnMessage(int source, std::span<const std::byte> payload);
  Status OnReady(int source, WireReader& reader);
  Status OnJoined(int source, WireReader& reader);
  Status OnSplit(WireReader& reader);
  Status OnReject(WireReader& reader);
  Status OnDecision(WireReader& reader, std::span<const std::byte> payload);
  Status OnPlan(WireReader& reader, std::span<const std::byte> payload);
  Status OnEnd(WireReader& reader, std::span<const std::byte> payload);
  Status Arrive(TensorKey key, uint32_t branch);
  Status Climb(uint32_t id);
  Status BranchJoined(uint32_t branch, int last, uint64_t unnamed);
  Status Take(Decision decision);
  Status SendDown(std::span<const std::byte> payload);

  // The root's.
  Status Tell(TreeRoot::Verdicts verdicts);
  Status Publish(Decision decision);
  Status PublishPlan();
  Status PublishEnd();

  [[nodiscard]] int Parent() const;
  [[nodiscard]] std::vector<int> Children() const;

  ControlMux& mux_;
  const uint32_t process_set_;
  SetSegment& control_;
  const SetContext& context_;
  const Doorbells& doorbells_;
  const std::vector<int> global_ranks_;

  // By id; there are no more than kIds.
  std::mutex mutex_;
  std::unordered_map<uint32_t, Pending> pending_;
  std::unordered_map<uint32_t, uint64_t> own_;       ///< generation of this rank's undecided call
  std::unordered_map<uint32_t, uint64_t> rejected_;  ///< last generation that ended in an error
  ToldBuckets<uint32_t> buckets_;
  std::deque<Decision> decisions_;
  uint64_t decided_ = 0;
  uint32_t joined_ = 0;   ///< branches all of whose ranks have joined
  uint64_t unnamed_ = 0;  ///< the most unnamed calls of a rank of theirs
  SetEnd end_;            ///< in the order of the decisions: the root tells it down the tree
  std::optional<TreeRoot> root_;
};

}  // namespace horoacc
