#pragma once
// Messages over a byte stream: a header with magic, kind, epoch, length and checksums, then the
// payload. The header is trusted for nothing before its checksum is right.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"

namespace horoacc {

struct Frame {
  uint32_t kind = 0;
  std::vector<std::byte> bytes;
};

/// Assembles frames from a non-blocking socket. Memory grows with the bytes that arrived, never
/// with the length that a header claims.
class FrameReader {
 public:
  FrameReader(uint64_t epoch, uint64_t longest) : epoch_(epoch), longest_(longest) {}

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
  std::vector<std::byte> bytes_;
  size_t begin_ = 0;
};

/// Keeps the bytes that a non-blocking socket has not taken yet.
class FrameWriter {
 public:
  explicit FrameWriter(uint64_t epoch) : epoch_(epoch) {}

  void Queue(uint32_t kind, std::span<const std::byte> payload);
  /// Sends as much as the socket takes now; true if nothing is left.
  Result<bool> FlushTo(int fd);
  [[nodiscard]] size_t pending() const { return bytes_.size() - begin_; }

 private:
  uint64_t epoch_;
  std::vector<std::byte> bytes_;
  size_t begin_ = 0;
};

}  // namespace horoacc
