#pragma once
// Data links between the ranks of a host, through the memory that they share.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/result.h"
#include "transport/arena.h"
#include "transport/bell.h"
#include "transport/data_links.h"
#include "transport/host_share.h"

namespace horoacc {

struct ShmDataOptions {
  const HostShare* share = nullptr;
  /// A part of the host's board, zeroed, of ShmDataBoardBytes: the same on all ranks.
  std::byte* board = nullptr;
  Arena* arena = nullptr;        ///< in this rank's own memory, for slots
  const Bells* bells = nullptr;  ///< news rings the peer with Urgency::kWork
  /// Has this local rank shut down in good order? Then its end is no loss. Empty: nobody has.
  std::function<bool(int local_rank)> has_left{};
};

/// What the board must set aside for the data links of so many ranks.
[[nodiscard]] size_t ShmDataBoardBytes(size_t local_ranks);

/// A message that lies in the sender's own shared memory is read from there; any other is copied to
/// a slot, which a link has from its first such message on. A peer's death shows at its pidfd,
/// which Progress looks at when it has found nothing for a while.
///
/// Blocks of links that were closed early stay until the object's end: a slow peer may still read.
[[nodiscard]] Result<std::unique_ptr<DataLinks>> MakeShmDataLinks(const ShmDataOptions& options);

}  // namespace horoacc
