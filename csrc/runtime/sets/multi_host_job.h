#pragma once
// What an engine has besides if its job's ranks do not all share memory: data links to every rank,
// a control segment of its own, and a channel for what concerns the job as a whole.
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "negotiate/control_segment/control_segment.h"
#include "negotiate/multi_host/control_mux.h"
#include "negotiate/wire.h"
#include "transport/data/data_links.h"
#include "transport/memory/arena.h"
#include "transport/memory/host_share.h"
#include "transport/net/socket_counters.h"
#include "transport/wake/doorbell.h"

namespace horoacc {

/// Made by the launch, if there is more than one host.
struct MultiHostParts {
  std::vector<int> host_of;           ///< by rank: a number that ranks sharing memory have alike
  std::unique_ptr<DataLinks> across;  ///< to ranks of other hosts
  std::shared_ptr<const SocketCounters> sockets = std::make_shared<SocketCounters>();  ///< theirs
  size_t shm_offset = 0;  ///< where the control segment has room for the links inside it
};

class MultiHostJob {
 public:
  struct Surroundings {
    int rank = 0;
    const HostShare* share = nullptr;
    Arena* arena = nullptr;
    const Doorbells* doorbells = nullptr;
    ControlMux* mux = nullptr;
    std::function<bool(int local_rank)> has_left;  ///< of ranks on this host
    std::function<void(const Error&)> aborted;     ///< another rank has aborted the job
    std::function<std::string()> stack;            ///< where this rank's interpreter is
  };
  static Result<std::unique_ptr<MultiHostJob>> Make(MultiHostParts parts, Surroundings surroundings,
                                                    uint64_t fusion_threshold);
  ~MultiHostJob();

  [[nodiscard]] const std::vector<int>& host_of() const { return host_of_; }
  /// Nobody else sees it: the sets' ids, names and rows of this rank.
  [[nodiscard]] const ControlSegment& control() const { return *control_; }
  [[nodiscard]] std::byte* memory() const { return own_.memory[0].data(); }
  [[nodiscard]] const SocketCounters& sockets() const { return *sockets_; }
  /// Until Leave.
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

  /// Tells all ranks, as far as they can be reached.
  void TellAbort(const Error& error);
  /// This rank shuts down: the last message to each of the others. In good order nobody here uses
  /// the data links any more, and they go; after an abort a slow peer may still read what they
  /// hold, and who has not heard of it yet hears why this rank's links close.
  void Leave(const Error& aborted);
  /// The ranks of neighbouring hosts that send this one signs of life: the lowest rank of a host
  /// that has not left speaks for it, and each host is listened to by the hosts before and behind
  /// it. None unless this rank speaks for its host.
  [[nodiscard]] std::vector<int> watched() const;
  [[nodiscard]] int64_t heard_ns(int rank) const {
    return heard_ns_[rank].load(std::memory_order_acquire);
  }
  /// Asks a rank where its interpreter is; the answer to the latest wish, once it has come.
  void AskForStack(int rank);
  [[nodiscard]] std::optional<std::string> StackOf(int rank);
  /// To those who watch this rank.
  void TellBeat();
  /// After Leave: nobody drives any more. Links over MPI stay: they cannot be closed after its end.
  /// Of the control segment those places stay readable that had sets.
  void LetGo(bool close_links, uint32_t places);
  [[nodiscard]] bool HasLeft(int rank) const { return left_[rank].load(std::memory_order_acquire); }

  /// A number for a group of which this rank tells the other members.
  Result<uint32_t> ClaimGroupNumber();

 private:
  MultiHostJob(MultiHostParts& parts, Surroundings surroundings);
  Status OnMessage(int source, std::span<const std::byte> payload);
  void TellAll(const WireWriter& writer);

  const std::vector<int> host_of_;
  const std::shared_ptr<const SocketCounters> sockets_;
  const Surroundings surroundings_;
  HostShare own_;
  std::unique_ptr<ControlSegment> control_;
  std::unique_ptr<DataLinks> links_;
  std::vector<std::atomic<bool>> left_;         ///< by rank
  std::vector<std::atomic<int64_t>> heard_ns_;  ///< by rank
  std::atomic<uint32_t> groups_claimed_{0};
  std::mutex stacks_mutex_;
  std::map<int, std::optional<std::string>> stacks_;  ///< by rank that was asked
};

}  // namespace horoacc
