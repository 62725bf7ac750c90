#include "transport/net/frames.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/crc32c.h"
#include "transport/net/socket.h"

namespace horoacc {
namespace {

constexpr uint32_t kFrameMagic = 0x46434148;  // "HACF"
constexpr size_t kReadChunk = 64 * 1024;
constexpr size_t kReadAtOnce = 4 * kReadChunk;
constexpr size_t kKept = 2 * kReadAtOnce;  ///< memory that an idle end keeps

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

/// Drops the bytes before `begin` once they are the larger part; returns how many. The memory of a
/// long message is given back after it.
size_t Compact(std::vector<std::byte>& bytes, size_t& begin) {
  if (begin == bytes.size()) {
    if (bytes.capacity() > kKept) std::vector<std::byte>().swap(bytes);
    bytes.clear();
  } else if (begin > bytes.size() / 2) {
    bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(begin));
  } else {
    return 0;
  }
  return std::exchange(begin, 0);
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
  const size_t tag = seal_.on() ? Sealing::kTagBytes : 0;
  std::byte* const begin = bytes_.data() + begin_;
  Header header;
  if (available < sizeof(header) + tag) return std::optional<Frame>();
  if (tag > 0 && !opened_) {
    const Status right = seal_.Apply(begin, sizeof(header), begin + sizeof(header));
    if (!right.ok())
      return MakeError(ErrorKind::kSystem, "the header of a message was " + right.error().message);
    opened_ = true;
  }
  std::memcpy(&header, begin, sizeof(header));
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
  const size_t second = header.length > 0 ? tag : 0;
  if (available - sizeof(header) - tag < header.length + second) return std::optional<Frame>();
  std::byte* const payload = begin + sizeof(header) + tag;
  const auto damaged = [&header](const std::string& how) {
    return MakeError(ErrorKind::kSystem,
                     "a message of " + std::to_string(header.length) + " bytes " + how);
  };
  if (second > 0) {
    if (const Status right = seal_.Apply(payload, header.length, payload + header.length);
        !right.ok())
      return damaged("was " + right.error().message);
  }
  Frame frame{header.kind, {payload, payload + header.length}};
  if (tag == 0 && header.payload_check != Crc32c(frame.bytes))
    return damaged("was damaged on its way");
  opened_ = false;
  begin_ += sizeof(header) + tag + header.length + second;
  Compact(bytes_, begin_);
  return std::optional<Frame>(std::move(frame));
}

void FrameWriter::Queue(uint32_t kind, std::span<const std::byte> payload) {
  // Tags find what the payload's checksum would.
  Header header{kFrameMagic, kind, epoch_, payload.size(), tag_bytes_ > 0 ? 0 : Crc32c(payload), 0};
  header.check = CheckOf(header);
  const size_t begin = bytes_.size();
  const size_t head = sizeof(header) + tag_bytes_;
  // The whole room at once: without memory for it, no part of a frame is here.
  bytes_.resize(begin + head + (payload.empty() ? 0 : payload.size() + tag_bytes_));
  std::memcpy(bytes_.data() + begin, &header, sizeof(header));
  std::ranges::copy(payload, bytes_.begin() + static_cast<ptrdiff_t>(begin + head));
}

Status FrameWriter::SealFrames() {
  if (tag_bytes_ == 0) return {};
  while (sealed_ < bytes_.size()) {
    if (!seal_.on()) return MakeError(ErrorKind::kSystem, "a connection has no key");
    std::byte* const frame = bytes_.data() + sealed_;
    Header header;
    std::memcpy(&header, frame, sizeof(header));
    HA_TRY(seal_.Apply(frame, sizeof(header), frame + sizeof(header)));
    sealed_ += sizeof(header) + tag_bytes_;
    if (header.length == 0) continue;
    std::byte* const payload = bytes_.data() + sealed_;
    HA_TRY(seal_.Apply(payload, header.length, payload + header.length));
    sealed_ += header.length + tag_bytes_;
  }
  return {};
}

Result<bool> FrameWriter::FlushTo(int fd) {
  HA_TRY(SealFrames());
  while (pending() > 0) {
    const ssize_t sent = ::send(fd, bytes_.data() + begin_, pending(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && WouldBlock()) break;
    if (sent < 0) return SystemError("send");
    begin_ += static_cast<size_t>(sent);
  }
  const size_t dropped = Compact(bytes_, begin_);
  if (tag_bytes_ > 0) sealed_ -= dropped;
  return pending() == 0;
}

}  // namespace horoacc
