#pragma once
// One connection of data links: sends frames from the links' memory and receives frames into it.
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "transport/data/data_frame.h"
#include "transport/data/tcp/tcp_inbound.h"
#include "transport/data/tcp/tcp_outbound.h"
#include "transport/net/fd.h"
#include "transport/net/sealing.h"
#include "transport/net/socket_counters.h"

namespace horoacc {

/// Traffic of the connections to one peer, headers included.
struct TcpTraffic {
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  uint64_t send_calls = 0;     ///< system calls that sent something or tried to
  uint64_t receive_calls = 0;  ///< system calls that received or tried to
};

/// Receives the frames of a stream.
class FrameReceiver {
 public:
  virtual ~FrameReceiver() = default;
  virtual Result<std::shared_ptr<InboundMessage>> OnStripe(const DataHeader& stripe) = 0;
  virtual Status OnNotice(const DataHeader& header, std::string_view text) = 0;
};

/// Of the two directions of a connection, both on or both off.
struct StreamSeals {
  Seal send{};
  Seal receive{};
};

class TcpStream {
 public:
  static constexpr size_t kLongestText = 2048;

  /// With `checksums` sent payload has checksums; a received frame says itself whether it has. A
  /// sealed stream needs none.
  TcpStream(Fd fd, uint64_t epoch, bool checksums, TcpTraffic& traffic, SocketCounters& counters,
            StreamSeals seals = {})
      : fd_(std::move(fd)),
        epoch_(epoch),
        checksums_(checksums && !seals.send.on()),
        traffic_(traffic),
        counters_(counters),
        seals_(std::move(seals)) {}
  TcpStream(const TcpStream&) = delete;
  TcpStream& operator=(const TcpStream&) = delete;

  [[nodiscard]] const Fd& fd() const { return fd_; }

  /// Whether a batch of frames waits for the socket to take more.
  [[nodiscard]] bool sending() const { return next_ < batch_.size(); }
  /// Takes the next frames; false if there are none. Only if not sending().
  Result<bool> Fill(Outbound& outbound, int streams);
  /// Queues one frame without a link's memory. Only if not sending().
  Status Queue(const DataHeader& header, std::string_view text);
  /// Sends as much as the socket takes; true once the batch is sent.
  Result<bool> Flush();
  /// Whether a begun frame reads memory of the link.
  [[nodiscard]] bool Reads(const OutboundLink* link) const {
    return std::ranges::find(lenders_, link) != lenders_.end();
  }
  /// Copies the rest of a begun frame, since the link's memory is about to be freed.
  void Detach(const OutboundLink* link);
  /// Gives back the memory of batches. Only if not sending().
  void Rest() {
    encrypted_.reset();
    std::vector<std::byte>().swap(own_);
  }

  /// Reads up to a bound. False once the peer has closed its end.
  Result<bool> Read(FrameReceiver& receiver);
  /// Whether Read has received anything since the last call of this function.
  [[nodiscard]] bool TakeMoved() { return std::exchange(moved_, false); }
  /// Whether a frame has begun and not ended.
  [[nodiscard]] bool partial() const { return left_ > 0 || awaits_tag_ || open_ || begin_ < end_; }

 private:
  static constexpr size_t kBatch = 16;

  Status SealFrame(size_t frame, size_t first);
  Status Consume(FrameReceiver& receiver);
  Result<bool> ConsumeHeader(FrameReceiver& receiver);
  Result<bool> ConsumeTag();
  Result<ssize_t> Receive(uint64_t& direct);
  Status Took(uint64_t bytes);
  [[nodiscard]] bool sealed() const { return seals_.send.on(); }
  [[nodiscard]] size_t tag_bytes() const { return sealed() ? Sealing::kTagBytes : 0; }

  Fd fd_;
  const uint64_t epoch_;
  const bool checksums_;
  TcpTraffic& traffic_;
  SocketCounters& counters_;
  StreamSeals seals_;

  // Sending.
  struct Head {
    DataHeader header;
    Seal::Tag tag;  ///< of a sealed stream's header
  };
  std::array<Head, kBatch> heads_;
  std::array<Seal::Tag, kBatch> tags_;      ///< of the bytes behind headers
  std::unique_ptr<std::byte[]> encrypted_;  ///< the batch's payload, if the seals encrypt
  size_t encrypted_bytes_ = 0;
  std::vector<iovec> batch_;
  size_t next_ = 0;                           ///< first entry of the batch that is not all sent
  std::vector<const OutboundLink*> lenders_;  ///< links whose memory the batch reads
  std::vector<std::byte> own_;                ///< copies of that memory

  // Receiving. Headers and ends of stripes pass through `staging_`, the rest of a stripe does not.
  std::array<std::byte, 4096> staging_;
  size_t begin_ = 0;
  size_t end_ = 0;
  bool open_ = false;        ///< stripe_ is a header whose notice has not come in full
  bool awaits_tag_ = false;  ///< of the stripe whose bytes have all come
  std::shared_ptr<InboundMessage> message_;
  DataHeader stripe_;  ///< the header of the current frame
  uint64_t at_ = 0;    ///< where in the message the next byte goes
  uint64_t left_ = 0;  ///< bytes of the stripe that are missing
  std::vector<iovec> targets_;
  uint64_t asked_ = 0;  ///< bytes that the last call had room for
  bool moved_ = false;
};

}  // namespace horoacc
