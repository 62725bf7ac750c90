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
  /// A part of the control segment, zeroed, of ShmDataControlBytes: the same on all ranks.
  std::byte* control = nullptr;
  Arena* arena = nullptr;                ///< in this rank's own memory, for slots
  const Doorbells* doorbells = nullptr;  ///< news rings the peer with Urgency::kWork
  /// Has this local rank shut down in good order? Then its end is no loss. Empty: nobody has.
  std::function<bool(int local_rank)> has_left{};
};

/// What the control segment must set aside for the data links of so many ranks.
[[nodiscard]] size_t ShmDataControlBytes(size_t local_ranks);

/// A message that lies in the sender's own shared memory is read from there; any other is copied to
/// a slot, which a link has from its first such message on. A peer's death shows at its pidfd,
/// which Progress looks at when it has found nothing for a while.
///
/// Blocks of links that were closed early stay until the object's end: a slow peer may still read.
[[nodiscard]] Result<std::unique_ptr<DataLinks>> MakeShmDataLinks(const ShmDataOptions& options);

}  // namespace horoacc
