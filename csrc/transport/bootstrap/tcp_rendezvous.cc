#include "transport/bootstrap/tcp_rendezvous.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "transport/bootstrap/gather_wire.h"
#include "transport/net/admission.h"
#include "transport/net/frames.h"
#include "transport/net/interfaces.h"
#include "transport/net/socket.h"

namespace horoacc {
namespace {

constexpr int64_t kRedial = 50 * kMillisecond;

// Ranks meet before they know what libraries the others have.
const Sealing kSealing{SealKind::kHmac};

Seal SealOf(const Digest& key, Seal::End end) {
  return std::move(Seal::Make(kSealing, key, end)).value();  // needs nothing that could fail
}

/// A proved connection to another rank.
struct Peer {
  Peer(Admitted admitted, uint64_t epoch, uint64_t longest)
      : fd(std::move(admitted.fd)),
        reader(epoch, longest, SealOf(admitted.keys.receive, Seal::End::kReceive)),
        writer(epoch, kSealing.tag_bytes()) {
    writer.Use(SealOf(admitted.keys.send, Seal::End::kSend));
  }

  Fd fd;
  FrameReader reader;
  FrameWriter writer;
};

/// The next frame of `peer`, if it is there or comes without waiting. kPeerLost if it is gone.
Result<std::optional<Frame>> TryNext(Peer& peer, int rank) {
  auto frame = peer.reader.Next();
  if (frame.ok() && !frame.value()) {
    auto open = peer.reader.FillFrom(peer.fd.get());
    frame = peer.reader.Next();
    if (frame.ok() && !frame.value() && (!open.ok() || !open.value())) {
      const std::string why = open.ok() ? "closed its connection" : open.error().message;
      return MakeError(ErrorKind::kPeerLost, "rank " + std::to_string(rank) + ": " + why, rank);
    }
  }
  if (!frame.ok()) {
    return MakeError(ErrorKind::kPeerLost,
                     "rank " + std::to_string(rank) + ": " + frame.error().message, rank);
  }
  return frame;
}

class RootBootstrap final : public Bootstrap {
 public:
  explicit RootBootstrap(const TcpOptions& options) : options_(options), peers_(options.size) {}

  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return options_.size; }

  Status Gather(Fd listener);
  Result<std::string> Round(const std::string& blob, const RawAnswers& answers,
                            int64_t deadline_ns) override;

 private:
  void Seat(Admitted admitted);
  [[nodiscard]] std::vector<bool> Present() const;
  Error Fail(Error error);
  Result<std::vector<std::string>> Collect(const std::string& blob, int64_t deadline_ns);
  Status SendAll(uint32_t kind, const std::string& payload, int64_t deadline_ns) {
    return SendEach(kind, std::vector<std::string>(peers_.size(), payload), deadline_ns);
  }
  Status SendEach(uint32_t kind, const std::vector<std::string>& payloads, int64_t deadline_ns);

  TcpOptions options_;
  std::vector<std::optional<Peer>> peers_;  ///< by rank; [0] stays empty
  std::optional<Error> failed_;
};

std::vector<bool> RootBootstrap::Present() const {
  std::vector<bool> present(peers_.size());
  for (size_t rank = 0; rank < peers_.size(); ++rank) present[rank] = rank == 0 || peers_[rank];
  return present;
}

/// Gives a proved connection its rank's place, or tells the rank why it gets none.
void RootBootstrap::Seat(Admitted admitted) {
  const int rank = admitted.peer_rank;
  const std::string name = "rank " + std::to_string(rank);
  std::string refusal;
  if (admitted.peer_size != options_.size) {
    refusal = name + " expects " + std::to_string(admitted.peer_size) + " ranks, rank 0 expects " +
              std::to_string(options_.size);
  } else if (rank < 1 || rank >= options_.size) {
    refusal = "there is no place for a " + name + " among " + std::to_string(options_.size);
  } else if (peers_[rank] && !HungUp(peers_[rank]->fd)) {
    refusal = name + " is here already";
  }
  Peer peer(std::move(admitted), options_.epoch, kLongestBlob);
  if (refusal.empty()) {
    peers_[rank] = std::move(peer);
    return;
  }
  const Error error = MakeError(ErrorKind::kConfig, "rank 0 refused: " + refusal, rank);
  peer.writer.Queue(kGatherFailure, BytesOf(PackError(error)));
  // One attempt: a fresh socket takes these few bytes, and rank 0 waits for no refused peer.
  [[maybe_unused]] const auto sent = peer.writer.FlushTo(peer.fd.get());
}

/// Sends the error to all peers that still read; the bootstrap is unusable afterwards.
Error RootBootstrap::Fail(Error error) {
  failed_ = error;
  [[maybe_unused]] const Status told = SendAll(kGatherFailure, PackError(error), NowNs() + kSecond);
  return error;
}

Status RootBootstrap::Gather(Fd listener) {
  HandshakeTerms terms{options_.secret, LinkPurpose::kRendezvous, options_.epoch, 0, options_.size};
  Admission admission(std::move(terms), kUnauthenticatedPeers + options_.size, kHandshakeTimeoutNs,
                      options_.log, options_.cancellation);
  HA_TRY(admission.Listen(std::move(listener)));
  while (true) {
    const auto present = Present();
    if (std::ranges::all_of(present, std::identity())) break;
    if (NowNs() >= options_.deadline_ns) {
      std::string text = "rendezvous at " + options_.address + ": rank(s) " +
                         NamesOfMissing(present) + " of " + std::to_string(options_.size) +
                         " did not come in time";
      if (const std::string why = admission.TurnedAway(); !why.empty()) text += " (" + why + ")";
      const auto first = std::ranges::find(present, false) - present.begin();
      return Fail(MakeError(ErrorKind::kTimeout, text, static_cast<int>(first)));
    }
    HA_ASSIGN(Admission::Outcome outcome, admission.Step(options_.deadline_ns));
    for (Admitted& admitted : outcome.admitted) Seat(std::move(admitted));
    for (auto& peer : peers_) {
      // A rank that disconnects before all ranks are there may connect again.
      if (peer && HungUp(peer->fd)) peer.reset();
    }
  }
  const Status welcomed = SendAll(kGatherWelcome, "", options_.deadline_ns);
  if (!welcomed.ok()) return Fail(welcomed.error());
  return {};
}

Status RootBootstrap::SendEach(uint32_t kind, const std::vector<std::string>& payloads,
                               int64_t deadline_ns) {
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    if (peers_[rank]) peers_[rank]->writer.Queue(kind, BytesOf(payloads[rank]));
  }
  std::optional<Error> first;
  while (true) {
    std::vector<pollfd> waits;
    std::vector<bool> taken(peers_.size(), true);
    for (size_t rank = 0; rank < peers_.size(); ++rank) {
      auto& peer = peers_[rank];
      if (!peer) continue;
      const auto flushed = peer->writer.FlushTo(peer->fd.get());
      if (!flushed.ok()) {
        const int culprit = static_cast<int>(rank);
        if (!first) {
          first =
              MakeError(ErrorKind::kPeerLost,
                        "rank " + std::to_string(rank) + ": " + flushed.error().message, culprit);
        }
        peer.reset();
      } else if (!flushed.value()) {
        waits.push_back({peer->fd.get(), POLLOUT, 0});
        taken[rank] = false;
      }
    }
    if (waits.empty()) break;
    if (NowNs() >= deadline_ns) {
      const auto slow = std::ranges::find(taken, false) - taken.begin();
      return MakeError(ErrorKind::kTimeout,
                       "rendezvous: rank(s) " + NamesOfMissing(taken) + " do not read from rank 0",
                       static_cast<int>(slow));
    }
    HA_TRY(PollUntil(waits, deadline_ns, options_.cancellation));
  }
  if (first) return *std::move(first);
  return {};
}

Result<std::vector<std::string>> RootBootstrap::Collect(const std::string& blob,
                                                        int64_t deadline_ns) {
  std::vector<std::string> blobs(peers_.size());
  std::vector<bool> present(peers_.size(), false);
  blobs[0] = blob;
  present[0] = true;
  while (true) {
    std::vector<pollfd> waits;
    for (size_t rank = 1; rank < peers_.size(); ++rank) {
      if (present[rank]) continue;
      HA_ASSIGN(std::optional<Frame> frame, TryNext(*peers_[rank], static_cast<int>(rank)));
      if (frame) {
        blobs[rank] = TextOf(frame->bytes);
        present[rank] = true;
      } else {
        waits.push_back({peers_[rank]->fd.get(), POLLIN, 0});
      }
    }
    if (waits.empty()) return blobs;
    if (NowNs() >= deadline_ns) return StillMissing(present);
    HA_TRY(PollUntil(waits, deadline_ns, options_.cancellation));
  }
}

Result<std::string> RootBootstrap::Round(const std::string& blob, const RawAnswers& answers,
                                         int64_t deadline_ns) {
  if (failed_) return *failed_;
  auto blobs = Collect(blob, deadline_ns);
  if (!blobs.ok()) return Fail(std::move(blobs.error()));
  std::vector<std::string> all = answers(std::move(blobs).value());
  const Status sent = SendEach(kGatherAnswer, all, deadline_ns);
  if (!sent.ok()) return Fail(sent.error());
  return std::move(all[0]);
}

class LeafBootstrap final : public Bootstrap {
 public:
  LeafBootstrap(const TcpOptions& options, Peer root) : options_(options), root_(std::move(root)) {}

  [[nodiscard]] int rank() const override { return options_.rank; }
  [[nodiscard]] int size() const override { return options_.size; }

  Status AwaitWelcome() { return Await(kGatherWelcome, options_.deadline_ns).second; }

  Result<std::string> Round(const std::string& blob, const RawAnswers& /*answers*/,
                            int64_t deadline_ns) override {
    if (failed_) return *failed_;
    if (blob.size() > kLongestBlob) {
      return MakeError(ErrorKind::kInvalid, "a blob of the bootstrap has at most 64 MiB");
    }
    root_.writer.Queue(kGatherBlob, BytesOf(blob));
    auto [frame, status] = Await(kGatherAnswer, deadline_ns);
    if (!status.ok()) {
      failed_ = status.error();
      return std::move(status.error());
    }
    return TextOf(frame.bytes);
  }

 private:
  /// Sends what is queued and waits for a frame of `kind`.
  std::pair<Frame, Status> Await(uint32_t kind, int64_t deadline_ns);

  TcpOptions options_;
  Peer root_;
  std::optional<Error> failed_;
};

std::pair<Frame, Status> LeafBootstrap::Await(uint32_t kind, int64_t deadline_ns) {
  const int64_t give_up = WithVerdictGrace(deadline_ns);
  while (true) {
    // A failed send is not reported: rank 0 may have sent the reason before it closed.
    const auto flushed = root_.writer.FlushTo(root_.fd.get());
    auto next = TryNext(root_, 0);
    if (!next.ok()) return {Frame(), std::move(next.error())};
    if (next.value()) {
      Frame frame = *std::move(next.value());
      if (frame.kind == kGatherFailure) return {Frame(), UnpackError(frame.bytes)};
      if (frame.kind == kind) return {std::move(frame), Status()};
      return {Frame(), MakeError(ErrorKind::kSystem, "rank 0 sent a message out of turn", 0)};
    }
    const bool sending = flushed.ok() && !flushed.value();
    const Status ready =
        WaitReady(root_.fd.get(), static_cast<short>(sending ? POLLIN | POLLOUT : POLLIN), give_up,
                  options_.cancellation);
    if (!ready.ok() && ready.error().kind != ErrorKind::kTimeout) return {Frame(), ready.error()};
    if (!ready.ok()) {
      return {Frame(), MakeError(ErrorKind::kTimeout, "rendezvous: no answer from rank 0", 0)};
    }
  }
}

Result<Fd> ListenForRanks(const TcpOptions& options) {
  // Unauthenticated peers in the queue must not keep the ranks out.
  const int backlog = std::max(1024, options.size);
  HA_ASSIGN(const std::vector<SocketAddress> addresses, ResolveAddress(options.address));
  Error last;
  for (SocketAddress address : addresses) {
    int code = 0;
    auto listener = Listen(address, backlog, &code);
    if (!listener.ok() && code == EADDRNOTAVAIL) {
      // The name means this machine but is translated on the way (containers): any interface.
      const uint16_t port = address.port();
      const int family = address.family();
      address.storage = {};
      address.storage.ss_family = static_cast<sa_family_t>(family);
      address.set_port(port);
      listener = Listen(address, backlog);
    }
    if (listener.ok()) return listener;
    last = std::move(listener.error());
  }
  last.kind = ErrorKind::kConfig;
  return std::move(last).Within("rank 0 cannot listen at " + options.address);
}

Result<Fd> TakeListener(const TcpOptions& options) {
  if (options.listen_fd < 0) return ListenForRanks(options);
  Fd listener(options.listen_fd);
  HA_TRY(SetNonBlocking(listener.get()));
  return listener;
}

/// Dials until rank 0 has proved the secret.
Result<Admitted> DialRoot(const TcpOptions& options) {
  HandshakeTerms terms{options.secret, LinkPurpose::kRendezvous, options.epoch, options.rank,
                       options.size};
  Admission admission(std::move(terms), 0, kHandshakeTimeoutNs, options.log, options.cancellation);
  std::string reason = "no time to try";
  std::string way;
  for (size_t attempt = 0; NowNs() < options.deadline_ns; ++attempt) {
    // Resolved at every attempt: the name of a host that is still starting may not exist yet.
    auto addresses = ResolveAddress(options.address);
    if (!addresses.ok()) {
      if (options.address.find(':') == std::string::npos) return std::move(addresses.error());
      reason = addresses.error().message;
    } else {
      const auto& all = addresses.value();
      const SocketAddress& address = all[attempt % all.size()];
      way = " " + WayTo(address);
      HA_ASSIGN(std::optional<Admitted> root,
                admission.DialAndWait(address, options.deadline_ns, reason));
      if (root && root->peer_rank == 0) return *std::move(root);
      if (root) reason = "another rank than 0 answers there";
    }
    const int64_t again = std::min(NowNs() + kRedial, options.deadline_ns);
    HA_TRY(PollUntil({}, again, options.cancellation));
  }
  return MakeError(ErrorKind::kTimeout,
                   "rank " + std::to_string(options.rank) + " cannot reach rank 0 at " +
                       options.address + way + ": " + reason,
                   0);
}

}  // namespace

Result<std::unique_ptr<Bootstrap>> ConnectTcp(const TcpOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return MakeError(ErrorKind::kConfig, "there is no rank " + std::to_string(options.rank) +
                                             " among " + std::to_string(options.size));
  }
  if (options.secret.empty()) {
    return MakeError(ErrorKind::kConfig, "the rendezvous needs the job's secret");
  }
  if (options.rank == 0) {
    HA_ASSIGN(Fd listener, TakeListener(options));
    auto root = std::make_unique<RootBootstrap>(options);
    HA_TRY(root->Gather(std::move(listener)));
    return std::unique_ptr<Bootstrap>(std::move(root));
  }
  HA_ASSIGN(Admitted root, DialRoot(options));
  auto leaf = std::make_unique<LeafBootstrap>(options,
                                              Peer(std::move(root), options.epoch, kLongestAnswer));
  HA_TRY(leaf->AwaitWelcome());
  return std::unique_ptr<Bootstrap>(std::move(leaf));
}

}  // namespace horoacc
