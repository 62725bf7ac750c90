#pragma once
// Data links between the ranks of a host, through the memory that they share.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/result.h"
#include "transport/data/data_links.h"
#include "transport/memory/arena.h"
#include "transport/memory/host_share.h"
#include "transport/wake/doorbell.h"

namespace horoacc {

struct ShmDataOptions {
  const HostShare* share = nullptr;
  /// ShmDataControlBytes of the control segment, zeroed: the same on all ranks.
  std::byte* control = nullptr;
  Arena* arena = nullptr;                ///< this rank's memory, for slots
  const Doorbells* doorbells = nullptr;  ///< a message rings the peer with Urgency::kWork
  /// Whether a local rank has shut down in order, so that its end is no error. Empty: none has.
  std::function<bool(int local_rank)> has_left{};
};

/// Bytes of the control segment for the data links of so many ranks.
[[nodiscard]] size_t ShmDataControlBytes(size_t local_ranks);

/// A message in the sender's own shared memory is read there; any other is copied to a slot, which
/// the link allocates at its first such message. Progress finds a peer's death at its pidfd, which
/// it checks when no message has come for a while.
///
/// Blocks of links that were closed early stay until the destructor: a slow peer may still read.
[[nodiscard]] Result<std::unique_ptr<DataLinks>> MakeShmDataLinks(const ShmDataOptions& options);

}  // namespace horoacc
