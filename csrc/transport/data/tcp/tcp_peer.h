#pragma once
// One peer of the data links over TCP: its connections and their traffic.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "transport/data/tcp/stream_tuning.h"
#include "transport/data/tcp/tcp_inbound.h"
#include "transport/data/tcp/tcp_outbound.h"
#include "transport/data/tcp/tcp_stream.h"

namespace horoacc {

class TcpPeer final : public FrameReceiver {
 public:
  /// `epoll`: the set that the connections join; an event's mark is `(rank << 16) + stream`.
  /// `most_streams`: messages are cut for so many connections.
  TcpPeer(int rank, uint64_t epoch, bool checksums, uint64_t fixed_buffer, int64_t host_timeout_ns,
          int epoll, int most_streams, SocketCounters& counters, const Sealing& sealing = {})
      : rank_(rank),
        epoch_(epoch),
        checksums_(checksums),
        fixed_buffer_(fixed_buffer),
        host_timeout_ns_(host_timeout_ns),
        epoll_(epoll),
        most_streams_(most_streams),
        counters_(counters),
        sealing_(sealing),
        inbound_(rank) {}

  [[nodiscard]] Inbound& in() { return inbound_; }
  [[nodiscard]] Outbound& out() { return outbound_; }
  [[nodiscard]] const TcpTraffic& traffic() const { return traffic_; }
  /// As ControlLinks::LeaveToParent.
  void LeaveToParent() const {
    for (const auto& stream : streams_) stream->fd().LeaveToParent();
  }
  /// Whether a link leads to the peer or comes from it.
  [[nodiscard]] bool used() const { return inbound_.used() || outbound_.used(); }
  [[nodiscard]] int streams() const { return static_cast<int>(streams_.size()); }

  Status Join(Fd connection, const LinkKeys& keys = {});
  /// Hands frames to the sockets; true if the sockets took any byte.
  Result<bool> Send();
  /// Reads a connection; true if any byte came.
  Result<bool> Read(size_t stream);
  [[nodiscard]] bool HasUnsent() const;
  /// Whether a connection's buffer is full.
  [[nodiscard]] bool full() const;
  /// Whether the peer has asked for more connections.
  [[nodiscard]] bool asks_to_widen() const { return asks_to_widen_; }
  /// kPeerLost if the peer has ended in order, but a link still waits for it.
  [[nodiscard]] Status CheckPresence() const;
  [[nodiscard]] bool gone() const { return open_ == 0 && !streams_.empty(); }
  /// Whether bytes in a link's memory are still to be sent.
  [[nodiscard]] bool Reads(const OutboundLink* link) const;
  /// Whether a connection needs LookAfterStreams now and then, even without traffic.
  [[nodiscard]] bool watched() const;
  /// A link's memory is about to be freed.
  void Detach(const OutboundLink* link);
  /// Adapts the buffers of connections at work. kPeerLost if the peer's host shows no sign of life.
  Status LookAfterStreams();
  /// Sends a last frame on every connection that is between two frames, and closes all. Does not
  /// wait, and touches no link's memory.
  void End(DataKind words, std::string_view text);

  Result<std::shared_ptr<InboundMessage>> OnStripe(const DataHeader& stripe) override;
  Status OnNotice(const DataHeader& header, std::string_view text) override;

 private:
  [[nodiscard]] Error Lost(const std::string& why) const;
  Result<bool> Broken(Error error, size_t stream, bool cut);
  void HearOut(size_t stream);
  Result<bool> SendOn(size_t stream);
  void Watch(size_t stream, bool writing);
  Status Finish(size_t stream);

  const int rank_;
  const uint64_t epoch_;
  const bool checksums_;
  const uint64_t fixed_buffer_;
  const int64_t host_timeout_ns_;
  const int epoll_;
  const int most_streams_;
  SocketCounters& counters_;
  const Sealing sealing_;
  Inbound inbound_;
  Outbound outbound_;
  TcpTraffic traffic_;
  std::vector<std::unique_ptr<TcpStream>> streams_;
  std::vector<bool> full_;               ///< by stream: registered for writing
  std::vector<bool> owes_;               ///< by stream: bytes were unacknowledged at the last look
  std::vector<HostSilence> heartbeats_;  ///< by stream
  std::vector<bool> closed_;             ///< by stream: the peer has closed its end, in order
  int open_ = 0;
  uint64_t looked_at_ = 0;  ///< bytes received up to the last LookAfterStreams
  bool asks_to_widen_ = false;
  bool left_ = false;          ///< the peer has announced an orderly end
  std::optional<Error> told_;  ///< the error with which the peer has aborted
};

/// An error as the text of an abort frame, and back.
[[nodiscard]] std::string PackAbort(const Error& error);
[[nodiscard]] Error UnpackAbort(std::string_view text, int rank);

}  // namespace horoacc
