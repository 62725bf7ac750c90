#pragma once
// The state that a rank's data links through shared memory share. Internal to shm_data.cc.
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/result.h"
#include "transport/data/data_links.h"
#include "transport/data/shm/shm_ring.h"
#include "transport/memory/arena.h"
#include "transport/memory/host_share.h"
#include "transport/wake/doorbell.h"

namespace horoacc {

/// A link, as one of its ends names it: `peer` is a local rank.
struct ShmLinkName {
  CollectiveId collective;
  int peer = -1;
  uint8_t channel = 0;
  friend auto operator<=>(const ShmLinkName&, const ShmLinkName&) = default;
};

/// A link's messages that have arrived and are not released; the receiver may not be open yet.
struct ShmIncoming {
  std::deque<ShmSlot*> slots;
  bool open = false;
};

class ShmExchange {
 public:
  ShmExchange(const HostShare& share, ShmRing* rings, Arena& arena, const Doorbells& doorbells,
              std::function<bool(int)> has_left);
  ~ShmExchange();
  ShmExchange(const ShmExchange&) = delete;
  ShmExchange& operator=(const ShmExchange&) = delete;

  [[nodiscard]] int me() const { return share_.local_rank; }
  [[nodiscard]] int RankOf(int local) const { return share_.ranks[local]; }
  [[nodiscard]] const Segment& MemoryOf(int local) const { return share_.memory[local]; }
  [[nodiscard]] uint64_t OffsetOf(const void* pointer) const {
    return static_cast<uint64_t>(static_cast<const std::byte*>(pointer) - MemoryOf(me()).data());
  }
  /// kInvalid unless it is another rank of this host.
  [[nodiscard]] Result<int> PlaceOf(int rank) const;

  /// Memory that peers see, from this rank's arena.
  [[nodiscard]] Result<void*> Allocate(size_t bytes);
  /// `over`: no peer reads the block any more. Otherwise it stays until the destructor.
  void Free(void* block, bool over);

  /// Sends the peer a note of a slot.
  void Note(int peer, const ShmSlot& slot);
  void Ring(int peer) const { doorbells_.Ring(peer, Urgency::kWork); }
  /// Writes the notes for which rings had no room, and reads new ones.
  [[nodiscard]] Result<bool> Move();
  [[nodiscard]] bool HasUnsent() const;
  /// kPeerLost if a peer's process has ended.
  [[nodiscard]] Status LookForDeaths();

  std::map<ShmLinkName, ShmIncoming> incoming;
  std::set<ShmLinkName> sending;  ///< open ends
  std::vector<int> callers;       ///< see DataLinks::TakeCallers
  std::optional<Error> error;     ///< the error that ended all links
  DataCounters counters;

 private:
  [[nodiscard]] ShmRing& RingOf(int sender, int receiver) const;
  bool Flush(int peer);
  Result<bool> Drain(int peer);

  const HostShare share_;
  ShmRing* rings_;
  Arena& arena_;
  const Doorbells& doorbells_;
  const std::function<bool(int)> has_left_;     ///< by local rank; may be empty
  std::vector<std::deque<uint64_t>> backlogs_;  ///< by peer: notes for which its ring has no room
  std::vector<void*> retired_;
  int64_t next_look_ns_ = 0;
};

}  // namespace horoacc
