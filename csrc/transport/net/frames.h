#pragma once
// Messages over a byte stream: a header with magic, kind, epoch, length and checksums, then the
// payload. The header is trusted for nothing before its checksum is right. On a sealed connection a
// tag follows the header, and one follows the payload unless it is empty.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "transport/net/sealing.h"

namespace horoacc {

struct Frame {
  uint32_t kind = 0;
  std::vector<std::byte> bytes;
};

/// Assembles frames from a non-blocking socket. Memory grows with the bytes that arrived, never
/// with the length that a header claims.
class FrameReader {
 public:
  /// `seal`: the receiving end's, if the connection is sealed.
  FrameReader(uint64_t epoch, uint64_t longest, Seal seal = {})
      : epoch_(epoch), longest_(longest), seal_(std::move(seal)) {}

  /// Reads up to a bound that keeps one busy peer from starving the others. False once the peer has
  /// closed its end (the frames before that are still there).
  Result<bool> FillFrom(int fd);
  /// The next whole frame, or nothing. An error means that the stream cannot be trusted any more.
  Result<std::optional<Frame>> Next();
  /// Whether a part of a frame is waiting for the rest.
  [[nodiscard]] bool partial() const { return begin_ < bytes_.size(); }

 private:
  uint64_t epoch_;
  uint64_t longest_;
  Seal seal_;
  bool opened_ = false;  ///< the seal of the header at begin_
  std::vector<std::byte> bytes_;
  size_t begin_ = 0;
};

/// Keeps the bytes that a non-blocking socket has not taken yet.
class FrameWriter {
 public:
  /// `tag_bytes`: 0, or as of the seal, which Use gives before anything is sent.
  explicit FrameWriter(uint64_t epoch, size_t tag_bytes = 0)
      : epoch_(epoch), tag_bytes_(tag_bytes) {}

  /// The sending end's, of the connection to which frames go from now on.
  void Use(Seal seal) { seal_ = std::move(seal); }
  void Queue(uint32_t kind, std::span<const std::byte> payload);
  /// Sends as much as the socket takes now; true if nothing is left.
  Result<bool> FlushTo(int fd);
  [[nodiscard]] size_t pending() const { return bytes_.size() - begin_; }

 private:
  Status SealFrames();

  uint64_t epoch_;
  size_t tag_bytes_;
  Seal seal_;
  std::vector<std::byte> bytes_;
  size_t begin_ = 0;
  size_t sealed_ = 0;  ///< frames before it are sealed; those behind it have room for tags
};

}  // namespace horoacc
