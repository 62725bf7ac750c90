#pragma once
// The additional parts of an engine whose job has several hosts: data links to every rank, and a
// channel for messages about the whole job.
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "negotiate/multi_host/control_mux.h"
#include "negotiate/wire.h"
#include "transport/data/data_links.h"
#include "transport/memory/arena.h"
#include "transport/memory/host_share.h"
#include "transport/net/socket_counters.h"
#include "transport/wake/doorbell.h"

namespace horoacc {

/// Made when an engine starts, if there is more than one host.
struct MultiHostParts {
  std::vector<int> host_of;           ///< by rank: its host's number
  std::unique_ptr<DataLinks> across;  ///< links to ranks of other hosts
  std::shared_ptr<const SocketCounters> sockets =
      std::make_shared<SocketCounters>();  ///< of `across`
  size_t shm_offset = 0;  ///< place in the control segment for the links inside the host
};

class MultiHostJob {
 public:
  struct Surroundings {
    int rank = 0;
    const HostShare* share = nullptr;
    Arena* arena = nullptr;
    const Doorbells* doorbells = nullptr;
    ControlMux* mux = nullptr;
    std::function<bool(int local_rank)> has_left;  ///< whether a rank of this host has left
    std::function<void(const Error&)> aborted;     ///< called when another rank has aborted the job
    std::function<std::string()> stack;            ///< returns this rank's Python stack
  };
  static Result<std::unique_ptr<MultiHostJob>> Make(MultiHostParts parts,
                                                    Surroundings surroundings);
  ~MultiHostJob();

  [[nodiscard]] const std::vector<int>& host_of() const { return host_of_; }
  [[nodiscard]] const SocketCounters& sockets() const { return *sockets_; }
  /// Valid until Leave.
  [[nodiscard]] DataLinks& links() const { return *links_; }
  Result<bool> Progress();
  /// As ControlLinks::LeaveToParent.
  void LeaveToParent() {
    if (links_) links_->LeaveToParent();
  }
  [[nodiscard]] bool HasUnsent() const { return links_ && links_->HasUnsent(); }
  void Abort(const Error& error) {
    if (links_) links_->Abort(error);
  }

  /// Sends the error to all ranks that can be reached.
  void TellAbort(const Error& error);
  /// This rank shuts down: sends the last message to each other rank. Without an error the data
  /// links are destroyed. After an abort they stay, because a slow peer may still read their
  /// memory, and the message tells each peer why this rank's links will close.
  void Leave(const Error& aborted);
  /// This rank has left a group: tells its other members, behind all messages that it has sent.
  void TellLeftGroup(uint32_t group, const std::vector<int>& members);
  [[nodiscard]] bool HasLeftGroup(uint32_t group, int rank) const;
  /// The ranks of neighbouring hosts whose heartbeats this rank receives. A host's lowest rank that
  /// has not left exchanges heartbeats with those of the hosts before and behind. Empty on all
  /// other ranks.
  [[nodiscard]] std::vector<int> watched() const;
  [[nodiscard]] int64_t heard_ns(int rank) const {
    return heard_ns_[rank].load(std::memory_order_acquire);
  }
  /// Asks a rank for its Python stack; StackOf has the answer to the latest request, once it came.
  void AskForStack(int rank);
  [[nodiscard]] std::optional<std::string> StackOf(int rank);
  /// Sends this rank's Python stack to the ranks that have asked for it. Takes up to seconds: the
  /// coordinator's, without the driver's lock.
  void AnswerForStacks();
  /// Sends a heartbeat to the ranks that watch this one.
  void TellBeat();
  /// After Leave, when no thread drives any more. `close_links`: false for links over MPI, which
  /// cannot be closed after its end.
  void LetGo(bool close_links) {
    if (close_links) links_.reset();
  }
  [[nodiscard]] bool HasLeft(int rank) const { return left_[rank].load(std::memory_order_acquire); }

 private:
  MultiHostJob(MultiHostParts& parts, Surroundings surroundings);
  Status OnMessage(int source, std::span<const std::byte> payload);
  void TellAll(const WireWriter& writer);

  const std::vector<int> host_of_;
  const std::shared_ptr<const SocketCounters> sockets_;
  const Surroundings surroundings_;
  std::unique_ptr<DataLinks> links_;
  std::vector<std::atomic<bool>> left_;         ///< by rank
  std::vector<std::atomic<int64_t>> heard_ns_;  ///< by rank
  mutable std::mutex groups_mutex_;
  std::set<std::pair<uint32_t, int>>
      left_groups_;  ///< ranks that have left, while this one had not
  std::mutex stacks_mutex_;
  std::map<int, std::optional<std::string>> stacks_;  ///< by asked rank
  std::vector<int> unanswered_;                       ///< ranks that have asked
};

}  // namespace horoacc
