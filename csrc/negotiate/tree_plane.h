#pragma once
// The plane of messages, over TCP or MPI: readiness climbs a tree of ranks, decisions come down.
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "negotiate/control_mux.h"
#include "negotiate/decider.h"
#include "negotiate/plane.h"
#include "negotiate/wire.h"
#include "transport/bell.h"

namespace horoacc {

/// A rank tells its parent that a tensor is ready once it and all its children are: no rank
/// handles the messages of all. The first time a name travels with the whole request; the root
/// numbers it in its decision, and from then on the number alone stands for it. Requests are
/// compared where branches meet, so a disagreement is found at the lowest common ancestor.
class TreePlane final : public Plane {
 public:
  TreePlane(ControlMux& mux, uint32_t process_set, SetBoard& board, const SetContext& context,
            const Bells& bells, const Settings& settings, std::vector<int> global_ranks);
  ~TreePlane() override;

  Status Announce(const Announcement& announcement) override;
  Status Unblock(std::span<const uint32_t> in_flight) override;
  Status Pump() override;
  Result<std::optional<Decision>> Next() override;
  Status Reject(const TensorName& tensor, const Error& error) override;
  Status Finish(const Decision& decision) override;
  [[nodiscard]] int Gone() override;

 private:
  /// A tensor on its way up, as far as this rank's branch knows.
  struct Pending {
    uint64_t generation = 0;
    uint32_t branches = 0;  ///< this rank and its children that are ready
    bool has_request = false;
    int request_rank = -1;  ///< global rank whose request this is
    Request request;
    Disagreement disagreement;
  };
  struct Known {
    std::string key;
    Request request;  ///< as of the last decision that ran it
  };
  struct Own {
    TensorKey key;
    Request request;
  };

  // All under mutex_.
  Status OnMessage(int source, std::span<const std::byte> payload);
  Status OnReady(WireReader& reader);
  Status OnDecision(std::span<const std::byte> payload);
  Status OnReject(std::span<const std::byte> payload);
  Status OnPlan(std::span<const std::byte> payload);
  Status Arrive(const std::string& key, uint64_t generation, int rank, const Request& request,
                Disagreement disagreement);
  Status Forward(const std::string& key, const Pending& pending);
  Status Decide(const std::string& key, Pending pending);
  Status DecideBacklog();
  Status PublishRun(const Bucket& gids);
  Status Publish(const Decision& decision, const std::vector<std::string>& keys);
  Status PublishPlan();
  Status SendDown(std::span<const std::byte> payload);
  uint32_t NumberOf(const std::string& key);
  void Take(Decision decision, const std::vector<std::string>& keys);

  [[nodiscard]] bool IsRoot() const { return context_.me == 0; }
  [[nodiscard]] int Parent() const;
  [[nodiscard]] std::vector<int> Children() const;

  ControlMux& mux_;
  const uint32_t process_set_;
  SetBoard& board_;
  const SetContext& context_;
  const Bells& bells_;
  const std::vector<int> global_ranks_;
  Decider decider_;

  std::mutex mutex_;
  std::unordered_map<std::string, Pending> pending_;
  std::unordered_map<std::string, Own> own_;            ///< this rank's submissions not yet decided
  std::unordered_map<std::string, uint64_t> rejected_;  ///< generation that was closed by force
  std::vector<Known> known_;                            ///< by number
  std::unordered_map<std::string, uint32_t> numbers_;
  std::unordered_map<uint32_t, uint32_t> local_ids_;  ///< board id -> number
  std::deque<Decision> decisions_;
  uint64_t decided_ = 0;
  int gone_ = -1;  ///< in the order of the decisions: the root tells it down the tree
  std::vector<std::vector<uint32_t>> plan_members_;  ///< numbers in each bucket, from the root

  // The root's.
  std::vector<std::byte> plan_memory_;
  PlanState plan_;
  std::unordered_map<uint32_t, TensorKey> ready_;  ///< by number: root's key of what is ready
  std::deque<std::pair<std::string, Pending>> backlog_;
  uint32_t plan_published_ = 0;
  uint32_t numbers_told_ = 0;  ///< the other ranks know the names of numbers below
};

}  // namespace horoacc
