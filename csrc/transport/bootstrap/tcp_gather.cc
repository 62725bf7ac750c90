#include "transport/bootstrap/tcp_gather.h"

#include <poll.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "transport/bootstrap/gather_wire.h"
#include "transport/net/admission.h"
#include "transport/net/frames.h"
#include "transport/net/socket.h"

namespace horoacc {
namespace {

constexpr int64_t kPatience = 10 * kSecond;
constexpr size_t kStrangers = 64;

/// A proved connection to another rank.
struct Peer {
  Peer(Fd socket, uint64_t epoch, uint64_t longest)
      : fd(std::move(socket)), reader(epoch, longest), writer(epoch) {}

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
  if (!frame.ok()) return std::move(frame.error()).Within("rank " + std::to_string(rank));
  return frame;
}

class RootBootstrap final : public Bootstrap {
 public:
  explicit RootBootstrap(const TcpOptions& options) : options_(options), peers_(options.size) {}

  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return options_.size; }

  Status Gather(Fd listener);
  Result<std::vector<std::string>> AllGather(const std::string& blob, int64_t deadline_ns) override;

 private:
  void Seat(Admitted guest);
  [[nodiscard]] std::vector<bool> Present() const;
  Error Fail(Error error);
  Result<std::vector<std::string>> Collect(const std::string& blob, int64_t deadline_ns);
  Status SendAll(uint32_t kind, const std::string& payload, int64_t deadline_ns);

  TcpOptions options_;
  std::vector<std::optional<Peer>> peers_;  ///< by rank; [0] stays empty
  std::optional<Error> failed_;
};

std::vector<bool> RootBootstrap::Present() const {
  std::vector<bool> present(peers_.size());
  for (size_t rank = 0; rank < peers_.size(); ++rank) present[rank] = rank == 0 || peers_[rank];
  return present;
}

/// Gives a proved connection its rank's place, or tells it why it gets none.
void RootBootstrap::Seat(Admitted guest) {
  std::string refusal;
  if (guest.peer_size != options_.size) {
    refusal = "rank " + std::to_string(guest.peer_rank) + " expects " +
              std::to_string(guest.peer_size) + " ranks, rank 0 expects " +
              std::to_string(options_.size);
  } else if (guest.peer_rank < 1 || guest.peer_rank >= options_.size) {
    refusal = "there is no place for a rank " + std::to_string(guest.peer_rank) + " among " +
              std::to_string(options_.size);
  } else if (peers_[guest.peer_rank] && !HungUp(peers_[guest.peer_rank]->fd)) {
    refusal = "rank " + std::to_string(guest.peer_rank) + " is here already";
  }
  Peer peer(std::move(guest.fd), options_.epoch, kLongestBlob);
  if (refusal.empty()) {
    peers_[guest.peer_rank] = std::move(peer);
    return;
  }
  const Error error = MakeError(ErrorKind::kConfig, "rank 0 refused: " + refusal, guest.peer_rank);
  peer.writer.Queue(kGatherFailure, BytesOf(PackError(error)));
  // One attempt: a fresh socket takes these few bytes, and nobody waits for a guest who does not.
  [[maybe_unused]] const auto sent = peer.writer.FlushTo(peer.fd.get());
}

/// Tells the others, as far as they listen, and spends the bootstrap.
Error RootBootstrap::Fail(Error error) {
  failed_ = error;
  [[maybe_unused]] const Status told = SendAll(kGatherFailure, PackError(error), NowNs() + kSecond);
  return error;
}

Status RootBootstrap::Gather(Fd listener) {
  HandshakeTerms terms{options_.secret, LinkPurpose::kRendezvous, options_.epoch, 0, options_.size};
  Admission admission(std::move(terms), kStrangers + options_.size, kPatience, options_.log,
                      options_.cancellation);
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
    for (Admitted& guest : outcome.admitted) Seat(std::move(guest));
    for (auto& peer : peers_) {
      // One that left before all were there may come again.
      if (peer && HungUp(peer->fd)) peer.reset();
    }
  }
  const Status welcomed = SendAll(kGatherWelcome, "", options_.deadline_ns);
  if (!welcomed.ok()) return Fail(welcomed.error());
  return {};
}

Status RootBootstrap::SendAll(uint32_t kind, const std::string& payload, int64_t deadline_ns) {
  for (auto& peer : peers_) {
    if (peer) peer->writer.Queue(kind, BytesOf(payload));
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

Result<std::vector<std::string>> RootBootstrap::AllGather(const std::string& blob,
                                                          int64_t deadline_ns) {
  if (failed_) return *failed_;
  auto blobs = Collect(blob, deadline_ns);
  if (!blobs.ok()) return Fail(std::move(blobs.error()));
  const Status sent = SendAll(kGatherTable, PackTable(blobs.value()), deadline_ns);
  if (!sent.ok()) return Fail(sent.error());
  return blobs;
}

class LeafBootstrap final : public Bootstrap {
 public:
  LeafBootstrap(const TcpOptions& options, Peer root) : options_(options), root_(std::move(root)) {}

  [[nodiscard]] int rank() const override { return options_.rank; }
  [[nodiscard]] int size() const override { return options_.size; }

  Status AwaitWelcome() { return Await(kGatherWelcome, options_.deadline_ns).second; }

  Result<std::vector<std::string>> AllGather(const std::string& blob,
                                             int64_t deadline_ns) override {
    if (failed_) return *failed_;
    if (blob.size() > kLongestBlob) {
      return MakeError(ErrorKind::kInvalid, "a blob of the bootstrap has at most 64 MiB");
    }
    root_.writer.Queue(kGatherBlob, BytesOf(blob));
    auto [frame, status] = Await(kGatherTable, deadline_ns);
    if (!status.ok()) {
      failed_ = status.error();
      return std::move(status.error());
    }
    return UnpackTable(frame.bytes, options_.size);
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
    // A failed send is not the news: rank 0 may have said why before it left.
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

}  // namespace

Result<std::unique_ptr<Bootstrap>> GatherRanks(const TcpOptions& options, Fd listener) {
  auto root = std::make_unique<RootBootstrap>(options);
  HA_TRY(root->Gather(std::move(listener)));
  return std::unique_ptr<Bootstrap>(std::move(root));
}

Result<std::unique_ptr<Bootstrap>> JoinRanks(const TcpOptions& options, Fd root) {
  auto leaf =
      std::make_unique<LeafBootstrap>(options, Peer(std::move(root), options.epoch, kLongestTable));
  HA_TRY(leaf->AwaitWelcome());
  return std::unique_ptr<Bootstrap>(std::move(leaf));
}

}  // namespace horoacc
