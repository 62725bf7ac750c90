#pragma once
// Messages about the whole job between its hosts: aborts, departures, heartbeats, addresses,
// questions.
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "negotiate/multi_host/control_mux.h"
#include "negotiate/multi_host/multi_host_tree.h"
#include "negotiate/wire.h"
#include "runtime/sets/rank_questions.h"
#include "transport/control/rank_directory.h"

namespace horoacc {

/// The hosts of a job form a tree (HostOrder). Of each host one rank speaks for all: its lowest
/// that has not left. A host of which all ranks have left is passed over: its children are those of
/// the next host above it, or, if there is none, of the first host that is left, the root. The
/// speaker passes news on to the hosts next to its own, so a host has control links to its parent,
/// grandparent, children and grandchildren, and to those ranks that its own ranks send messages.
class JobChannel {
 public:
  static constexpr uint32_t kNumber = 0xffffffff;  ///< of its messages: that of no process set
  struct Surroundings {
    int rank = 0;
    std::vector<int> locals;  ///< ranks of this host, ascending
    ControlMux* mux = nullptr;
    const RankDirectory* directory = nullptr;
    std::function<void(const Error&)> aborted;  ///< called when another host has aborted the job
    std::function<std::string()> stack;         ///< returns this rank's Python stack
    std::function<std::string(const ReadingScope&)> reading;  ///< returns this rank's reading
    std::function<void()> ring_host;         ///< wakes the threads of all ranks of this host
    std::function<void()> wake_coordinator;  ///< this rank's
  };
  JobChannel(std::vector<int> host_of, Surroundings surroundings);
  ~JobChannel();
  JobChannel(const JobChannel&) = delete;
  JobChannel& operator=(const JobChannel&) = delete;

  [[nodiscard]] const std::vector<int>& host_of() const { return host_of_; }

  // The driver's.

  /// Passes on what ranks of this host have left in the directory, if this rank speaks for them.
  void Progress();
  /// Whether this rank speaks for other ranks of its host that have not left.
  [[nodiscard]] bool SpeaksForOthers() const;
  /// This rank leaves the job in good order; it goes on until all is sent.
  void Depart();
  /// Whether this rank, which has departed, has to wait until that is told: if it spoke for its
  /// host, until another host has said that it passes the departure on, or none is left.
  [[nodiscard]] bool AwaitsFarewell();

  // Any thread.

  /// Sends the error, once, to all ranks with which this one has links, and to the hosts next to
  /// this one if this rank speaks for its host, or the rank that does has not told them for a
  /// while.
  void TellAbort(const Error& error);
  /// Whether some rank of this host has told the other hosts.
  [[nodiscard]] bool AbortTold() const { return around_.directory->AbortTold(); }
  /// Whether the rank died, by the error of an abort, that speaks for this one's host.
  [[nodiscard]] bool LostSpeaker(const Error& error) const {
    return error.kind == ErrorKind::kPeerLost && SpeakerOf(place_) == error.culprit;
  }
  /// This rank has left a group.
  void LeaveGroup(uint32_t group);
  [[nodiscard]] bool HasLeft(int rank) const {
    return around_.directory->HasDeparted({Departure::kJob, rank});
  }
  [[nodiscard]] bool HasLeftGroup(uint32_t group, int rank) const {
    return around_.directory->HasDeparted({group, rank});
  }
  /// The ranks of other hosts whose heartbeats this rank expects: those that speak for its host's
  /// parent, grandparent and children in the tree. None unless it speaks for its own.
  [[nodiscard]] std::vector<int> watched() const;
  [[nodiscard]] int64_t heard_ns(int rank) const;
  void TellBeat();
  /// A watched rank gives no sign of life, or does again: all hosts are told.
  void TellSilence(int rank, bool silent);
  /// The silent rank through which the news of `rank` would come. Nothing is known of `rank` then.
  [[nodiscard]] std::optional<int> SilentOnTheWay(int rank) const;
  [[nodiscard]] RankQuestions& questions() { return questions_; }

 private:
  Status OnMessage(int source, std::span<const std::byte> payload);
  void OnDepartures(int source, const std::vector<Departure>& departures);
  /// `told`: those that the rank `source` has told, whose host knows them.
  void PassOnDepartures(int source, const std::vector<Departure>& told);
  void AnswerFarewell(int source);
  void OnAddressAsked(int source, int rank);
  void AskForAddress(int rank);
  /// Of the rank that speaks for a host, to the next hosts.
  void TellAddress(uint32_t place);
  void HandOverAddresses();
  void OnAddress(int rank, const std::string& packed);
  void SetSilent(int rank, bool silent, int except_host);
  [[nodiscard]] std::vector<Departure> HostsDepartures() const;

  // The tree of the hosts that are left, by place.
  /// The rank that speaks for a host; none: all its ranks have left.
  [[nodiscard]] std::optional<int> SpeakerOf(uint32_t place) const;
  [[nodiscard]] bool Speaks() const { return SpeakerOf(place_) == around_.rank; }
  /// A speaker that leaves goes on passing on news, until another host has heard its own.
  [[nodiscard]] bool PassesOn() const { return Speaks() || farewell_ == Farewell::kSaid; }
  [[nodiscard]] std::optional<uint32_t> RootPlace() const;
  [[nodiscard]] std::optional<uint32_t> ParentOf(uint32_t place) const;
  [[nodiscard]] std::vector<uint32_t> ChildrenOf(uint32_t place) const;
  void AddChildren(uint32_t place, std::vector<uint32_t>& places) const;
  /// The speakers of parent and children.
  [[nodiscard]] std::vector<int> NextHosts() const;

  void Send(int rank, const WireWriter& writer);
  [[nodiscard]] RankQuestions::Surroundings AroundQuestions();
  void SendToHost(uint32_t place, const WireWriter& writer);
  /// `except_host`: the host from which the news came, as in host_of; kNoHost: it is of this one.
  static constexpr int kNoHost = -1;
  void SendToNextHosts(const WireWriter& writer, int except_host);

  const std::vector<int> host_of_;
  const HostOrder order_;
  const Surroundings around_;
  const uint32_t place_;  ///< this host's

  // The driver's.
  uint64_t wanted_seen_ = 0;
  uint64_t departures_seen_ = 0;
  std::vector<int> were_next_;  ///< the ranks that were told of those
  uint32_t root_told_ = 0;      ///< the place of the root whose address the next hosts know
  enum class Farewell : uint8_t { kNone, kSaid, kHeard };
  Farewell farewell_ = Farewell::kNone;    ///< of a speaker, or the last rank of its host
  int farewell_to_ = -1;                   ///< the rank that was asked whether it has heard it
  std::map<int, std::vector<int>> asked_;  ///< by rank: those that wait for its addresses

  std::atomic<bool> abort_told_{false};
  std::atomic<int64_t> abort_seen_ns_{0};
  mutable std::mutex heard_mutex_;
  std::map<int, int64_t> heard_ns_;  ///< by rank: its latest heartbeat
  RankQuestions questions_;
};

}  // namespace horoacc
