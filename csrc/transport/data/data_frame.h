#pragma once
// The frames on the connections of data links: a header, and for some kinds bytes behind it. On a
// sealed connection a tag follows the header, and one follows the bytes unless there are none.
#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/crc32c.h"
#include "transport/data/data_links.h"

namespace horoacc {

enum class DataKind : uint8_t {
  kStripe = 1,  ///< a part of a message
  kCredit = 2,  ///< `number` messages of the link have been released so far
  kAbort = 3,   ///< the sender has aborted; the text says why
  kLeave = 4,   ///< the sender has shut down in order; nothing follows
  kWiden = 5,   ///< the sender's only connection is full: the rank that dials may dial more
};

struct DataHeader {
  uint32_t magic = kMagic;
  DataKind kind = DataKind::kStripe;
  uint8_t channel = 0;
  uint16_t flags = 0;
  uint64_t epoch = 0;
  uint64_t sequence = 0;  ///< the collective's number
  uint32_t set = 0;
  uint32_t length = 0;         ///< bytes that follow
  uint64_t number = 0;         ///< the message's number in its link, or a count of messages
  uint64_t total = 0;          ///< bytes of the whole message
  uint64_t offset = 0;         ///< of this part in the message
  uint32_t payload_check = 0;  ///< CRC-32C of the bytes that follow, if kChecked
  uint32_t check = 0;          ///< CRC-32C of the header before it

  static constexpr uint32_t kMagic = 0x44434148;  // "HACD"
  static constexpr uint16_t kChecked = 1;         ///< of `flags`
  [[nodiscard]] CollectiveId collective() const { return {set, sequence}; }
  [[nodiscard]] uint32_t Checksum() const {
    return Crc32c(std::as_bytes(std::span(this, 1)).first(sizeof(DataHeader) - sizeof(check)));
  }
};
static_assert(sizeof(DataHeader) == 64);

[[nodiscard]] inline uint32_t ChecksumOf(std::span<const iovec> pieces) {
  uint32_t check = 0;
  for (const iovec& piece : pieces) {
    check = Crc32c({static_cast<const std::byte*>(piece.iov_base), piece.iov_len}, check);
  }
  return check;
}

/// One direction of a link, as its two ranks know it.
struct LinkKey {
  CollectiveId collective;
  uint8_t channel = 0;
  friend auto operator<=>(const LinkKey&, const LinkKey&) = default;
};

/// Appends `length` bytes of `pieces` from `offset` on, in at most `room` entries. Returns how many
/// bytes it appended.
template <typename Piece>
uint64_t AppendPart(std::span<const Piece> pieces, uint64_t offset, uint64_t length, size_t room,
                    std::vector<iovec>& to) {
  uint64_t appended = 0;
  for (const Piece& piece : pieces) {
    if (offset >= piece.size()) {
      offset -= piece.size();
      continue;
    }
    if (length == 0 || room == 0) break;
    const uint64_t part = std::min<uint64_t>(piece.size() - offset, length);
    to.push_back({const_cast<std::byte*>(piece.data()) + offset, part});
    appended += part;
    length -= part;
    offset = 0;
    --room;
  }
  return appended;
}

}  // namespace horoacc
