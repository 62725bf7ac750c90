#pragma once
// What the ranks of one host know of all ranks of a job on several hosts: where each listens, and
// which have left. It lies in the memory that the host's ranks share, so that each host learns an
// address once, and only if one of its ranks needs it.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/net/socket.h"

namespace horoacc {

/// Where a rank listens; an address without a port: it does not.
struct RankAddresses {
  SocketAddress control;
  SocketAddress data;

  [[nodiscard]] std::string Pack() const;
  /// Nothing if the text is damaged, or has a name for an address.
  [[nodiscard]] static std::optional<RankAddresses> Unpack(const std::string& text);
};

/// A rank has left the job, or a group.
struct Departure {
  static constexpr uint32_t kJob = 0xffffffff;
  uint32_t group = kJob;
  int rank = -1;
  bool operator==(const Departure&) const = default;
};

/// Any thread of any rank of the host.
class RankDirectory {
 public:
  [[nodiscard]] static size_t BytesFor(size_t ranks);
  /// `memory`: zeroed once, the same on all ranks of the host, aligned to 64.
  RankDirectory(std::byte* memory, size_t ranks);

  /// `wake` wakes the rank that passes the host's questions on.
  void OnWanted(std::function<void()> wake) { wake_ = std::move(wake); }
  /// Addresses that are not known are asked for, at most once a second on a host.
  [[nodiscard]] std::optional<RankAddresses> Find(int rank) const;
  [[nodiscard]] bool Knows(int rank) const;
  /// The ranks whose addresses are wanted and not known, if there were questions since the last
  /// call with the same `seen`.
  [[nodiscard]] std::vector<int> Wanted(uint64_t& seen) const;
  void Put(int rank, const RankAddresses& addresses) const;

  /// False if it was known.
  bool PutDeparture(const Departure& departure) const;
  [[nodiscard]] bool HasDeparted(const Departure& departure) const;
  /// Those from number `seen` on, which moves behind them.
  [[nodiscard]] std::vector<Departure> DeparturesSince(uint64_t& seen) const;

  /// Whether a rank that passes on the news of its host gives no sign of life.
  void SetSilent(int rank, bool silent) const;
  [[nodiscard]] bool IsSilent(int rank) const;
  /// The other hosts have been told of the abort of the job.
  void SetAbortTold() const;
  [[nodiscard]] bool AbortTold() const;

 private:
  struct Card;
  struct Header;
  void Want(Card& wanted) const;
  [[nodiscard]] Card& card(int rank) const;

  Header* header_;
  Card* cards_;
  size_t ranks_;
  std::function<void()> wake_;
};

}  // namespace horoacc
