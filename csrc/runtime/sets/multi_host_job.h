#pragma once
// The additional parts of an engine whose job has several hosts: data links to every rank, and the
// channel for messages about the whole job.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/sets/job_channel.h"
#include "transport/data/data_links.h"
#include "transport/memory/arena.h"
#include "transport/memory/host_share.h"
#include "transport/net/socket_counters.h"
#include "transport/wake/doorbell.h"

namespace horoacc {

/// Made when an engine starts, if there is more than one host.
struct MultiHostParts {
  std::vector<int> host_of;                  ///< by rank: its host's number
  std::vector<std::string> host_names;       ///< by rank
  std::shared_ptr<RankDirectory> directory;  ///< this host's
  std::unique_ptr<DataLinks> across;         ///< links to ranks of other hosts
  std::shared_ptr<const SocketCounters> sockets =
      std::make_shared<SocketCounters>();  ///< of `across`
  size_t shm_offset = 0;  ///< place in the control segment for the links inside the host

  /// Bytes of the control segment for the links inside a host and its directory.
  [[nodiscard]] static size_t ControlBytes(size_t local_ranks, size_t ranks);
  /// Takes the places in the control segment of a host.
  void Place(const HostShare& share);
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
    std::function<void(const Error&)> aborted;     ///< called when another host has aborted the job
    std::function<std::string()> stack;            ///< returns this rank's Python stack
    std::function<std::string(const ReadingScope&)> reading;  ///< returns this rank's reading
  };
  static Result<std::unique_ptr<MultiHostJob>> Make(MultiHostParts parts,
                                                    const Surroundings& surroundings);

  [[nodiscard]] JobChannel& channel() { return channel_; }
  [[nodiscard]] const SocketCounters& sockets() const { return *sockets_; }
  /// Valid until DropLinks.
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
  /// Destroys the data links: when this rank has left in good order, or, after an abort, when no
  /// thread drives any more, because a slow peer may still read their memory. Those over MPI cannot
  /// be closed after its end.
  void DropLinks() { links_.reset(); }

 private:
  MultiHostJob(MultiHostParts& parts, const Surroundings& surroundings);

  const std::shared_ptr<RankDirectory> directory_;
  const std::shared_ptr<const SocketCounters> sockets_;
  JobChannel channel_;
  std::unique_ptr<DataLinks> links_;
};

}  // namespace horoacc
