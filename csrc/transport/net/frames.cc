#include "transport/net/frames.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/crc32c.h"
#include "transport/net/socket.h"

namespace horoacc {
namespace {

constexpr uint32_t kFrameMagic = 0x46434148;  // "HACF"
constexpr size_t kReadChunk = 64 * 1024;
constexpr size_t kReadAtOnce = 4 * kReadChunk;

struct Header {
  uint32_t magic;
  uint32_t kind;
  uint64_t epoch;
  uint64_t length;
  uint32_t payload_check;
  uint32_t check;  ///< of everything before it
};
static_assert(sizeof(Header) == 32);

uint32_t CheckOf(const Header& header) {
  return Crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(Header, check)));
}

/// Drops the bytes before `begin` once they are the larger part.
void Compact(std::vector<std::byte>& bytes, size_t& begin) {
  if (begin == bytes.size()) {
    bytes.clear();
    begin = 0;
  } else if (begin > bytes.size() / 2) {
    bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(begin));
    begin = 0;
  }
}

}  // namespace

Result<bool> FrameReader::FillFrom(int fd) {
  std::byte chunk[kReadChunk];  // not zeroed: most messages are far shorter
  for (size_t total = 0; total < kReadAtOnce;) {
    ssize_t got = 0;
    do {
      got = ::recv(fd, chunk, kReadChunk, 0);
    } while (got < 0 && errno == EINTR);
    if (got == 0) return false;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (got < 0) return SystemError("recv");
    bytes_.insert(bytes_.end(), chunk, chunk + got);
    total += static_cast<size_t>(got);
    if (static_cast<size_t>(got) < kReadChunk) return true;
  }
  return true;
}

Result<std::optional<Frame>> FrameReader::Next() {
  const size_t available = bytes_.size() - begin_;
  Header header;
  if (available < sizeof(header)) return std::optional<Frame>();
  std::memcpy(&header, bytes_.data() + begin_, sizeof(header));
  if (header.magic != kFrameMagic)
    return MakeError(ErrorKind::kSystem, "a message has a broken header");
  if (header.check != CheckOf(header)) {
    return MakeError(ErrorKind::kSystem, "the header of a message was damaged on its way");
  }
  if (header.epoch != epoch_) {
    return MakeError(ErrorKind::kSystem, "a message is of epoch " + std::to_string(header.epoch) +
                                             " instead of " + std::to_string(epoch_));
  }
  if (header.length > longest_) {
    return MakeError(ErrorKind::kSystem, "a message of " + std::to_string(header.length) +
                                             " bytes is longer than the longest one allowed, " +
                                             std::to_string(longest_));
  }
  if (available - sizeof(header) < header.length) return std::optional<Frame>();
  const std::byte* payload = bytes_.data() + begin_ + sizeof(header);
  Frame frame{header.kind, {payload, payload + header.length}};
  if (header.payload_check != Crc32c(frame.bytes)) {
    return MakeError(ErrorKind::kSystem, "a message of " + std::to_string(header.length) +
                                             " bytes was damaged on its way");
  }
  begin_ += sizeof(header) + header.length;
  Compact(bytes_, begin_);
  return std::optional<Frame>(std::move(frame));
}

void FrameWriter::Queue(uint32_t kind, std::span<const std::byte> payload) {
  Header header{kFrameMagic, kind, epoch_, payload.size(), Crc32c(payload), 0};
  header.check = CheckOf(header);
  const auto* head = reinterpret_cast<const std::byte*>(&header);
  bytes_.insert(bytes_.end(), head, head + sizeof(header));
  bytes_.insert(bytes_.end(), payload.begin(), payload.end());
}

Result<bool> FrameWriter::FlushTo(int fd) {
  while (pending() > 0) {
    const ssize_t sent = ::send(fd, bytes_.data() + begin_, pending(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && WouldBlock()) break;
    if (sent < 0) return SystemError("send");
    begin_ += static_cast<size_t>(sent);
  }
  Compact(bytes_, begin_);
  return pending() == 0;
}

}  // namespace horoacc
