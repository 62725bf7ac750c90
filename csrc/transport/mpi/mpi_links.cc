#include "transport/mpi/mpi_links.h"

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "transport/bootstrap/gather_wire.h"
#include "transport/data/tagged/tagged_links.h"
#include "transport/net/handshake.h"
#include "transport/wake/backoff.h"

namespace horoacc {
namespace {

/// The star of gather_wire.h over MPI messages. Their first byte is the kind.
class MpiBootstrap final : public Bootstrap {
 public:
  explicit MpiBootstrap(std::shared_ptr<MpiSession> session) : session_(std::move(session)) {}

  [[nodiscard]] int rank() const override { return session_->rank(); }
  [[nodiscard]] int size() const override { return session_->size(); }

  Result<std::string> Round(const std::string& blob, const RawAnswers& answers,
                            int64_t deadline_ns) override {
    if (failed_) return *failed_;
    if (blob.size() > kLongestBlob) {
      return MakeError(ErrorKind::kInvalid, "a blob of the bootstrap has at most 64 MiB");
    }
    auto answer = rank() == 0 ? Lead(blob, answers, deadline_ns) : Follow(blob, deadline_ns);
    if (!answer.ok()) failed_ = answer.error();
    return answer;
  }

 private:
  Status Say(int peer, GatherKind kind, const std::string& payload) {
    return session_->Send(HA_MPI_BOOTSTRAP, peer, BytesOf(static_cast<char>(kind) + payload));
  }

  Result<std::string> Lead(const std::string& blob, const RawAnswers& answers,
                           int64_t deadline_ns) {
    auto blobs = Collect(blob, deadline_ns);
    if (!blobs.ok()) {
      const std::string failure = PackError(blobs.error());
      for (int peer = 1; peer < size(); ++peer) (void)Say(peer, kGatherFailure, failure);
      (void)session_->Drain(NowNs() + kSecond);
      return std::move(blobs.error());
    }
    std::vector<std::string> all = answers(std::move(blobs).value());
    for (int peer = 1; peer < size(); ++peer) HA_TRY(Say(peer, kGatherAnswer, all[peer]));
    // MPI moves messages only inside its calls, and the next call may come late.
    if (!session_->Drain(WithVerdictGrace(deadline_ns))) {
      return MakeError(ErrorKind::kTimeout, "bootstrap: some ranks do not receive from rank 0");
    }
    return std::move(all[0]);
  }

  Result<std::vector<std::string>> Collect(const std::string& blob, int64_t deadline_ns) {
    std::vector<std::string> blobs(size());
    std::vector<bool> present(size(), false);
    blobs[0] = blob;
    present[0] = true;
    Backoff backoff(session_->cancellation());
    while (std::ranges::find(present, false) != present.end()) {
      HA_ASSIGN(std::optional<ControlMessage> message, session_->Receive(HA_MPI_BOOTSTRAP));
      if (message && !message->bytes.empty()) {
        // No rank can be a round ahead: it sends its next blob after the answer to this one.
        blobs[message->source] = TextOf(std::span(message->bytes).subspan(1));
        present[message->source] = true;
        backoff = Backoff(session_->cancellation());
      } else if (NowNs() >= deadline_ns) {
        return StillMissing(present);
      } else {
        HA_TRY(backoff.Wait());
      }
    }
    return blobs;
  }

  Result<std::string> Follow(const std::string& blob, int64_t deadline_ns) {
    HA_TRY(Say(0, kGatherBlob, blob));
    Backoff backoff(session_->cancellation());
    while (true) {
      HA_ASSIGN(std::optional<ControlMessage> message, session_->Receive(HA_MPI_BOOTSTRAP));
      if (message && !message->bytes.empty()) {
        const auto payload = std::span<const std::byte>(message->bytes).subspan(1);
        const auto kind = static_cast<GatherKind>(message->bytes.front());
        if (kind == kGatherFailure) return UnpackError(payload);
        return TextOf(payload);
      }
      if (NowNs() >= WithVerdictGrace(deadline_ns)) {
        return MakeError(ErrorKind::kTimeout, "bootstrap: no answer from rank 0", 0);
      }
      HA_TRY(backoff.Wait());
    }
  }

  std::shared_ptr<MpiSession> session_;
  std::optional<Error> failed_;
};

class MpiControlLinks final : public ControlLinks {
 public:
  explicit MpiControlLinks(std::shared_ptr<MpiSession> session) : session_(std::move(session)) {}

  Status Send(int peer, std::span<const std::byte> bytes) override {
    if (peer < 0 || peer >= session_->size() || peer == session_->rank()) {
      return MakeError(ErrorKind::kInvalid, "no control link to rank " + std::to_string(peer));
    }
    HA_TRY(session_->Send(HA_MPI_CONTROL, peer, bytes));
    peers_.insert(peer);
    ++messages_sent_;
    bytes_sent_ += bytes.size();
    return {};
  }

  Result<std::optional<ControlMessage>> Receive() override {
    HA_ASSIGN(std::optional<ControlMessage> message, session_->Receive(HA_MPI_CONTROL));
    if (message) peers_.insert(message->source);
    return message;
  }

  [[nodiscard]] std::vector<int> peers() const override { return {peers_.begin(), peers_.end()}; }

  [[nodiscard]] bool HasUnsent() override { return session_->HasUnsent(); }
  [[nodiscard]] int WaitFd() const override { return -1; }
  [[nodiscard]] const char* kind() const override { return "mpi"; }
  [[nodiscard]] uint64_t messages_sent() const override { return messages_sent_; }
  [[nodiscard]] uint64_t bytes_sent() const override { return bytes_sent_; }

 private:
  std::shared_ptr<MpiSession> session_;
  std::set<int> peers_;
  uint64_t messages_sent_ = 0;
  uint64_t bytes_sent_ = 0;
};

}  // namespace

std::unique_ptr<Bootstrap> MakeMpiBootstrap(std::shared_ptr<MpiSession> session) {
  return std::make_unique<MpiBootstrap>(std::move(session));
}

std::unique_ptr<ControlLinks> MakeMpiControlLinks(std::shared_ptr<MpiSession> session) {
  return std::make_unique<MpiControlLinks>(std::move(session));
}

std::unique_ptr<DataLinks> MakeMpiDataLinks(std::shared_ptr<MpiSession> session, uint64_t epoch) {
  TaggedCarrier carrier;
  carrier.calls = MpiSession::TaggedCalls();
  carrier.self = session.get();
  carrier.rank = session->rank();
  carrier.size = session->size();
  carrier.most_tag = session->most_tag();
  carrier.kind = "mpi";
  carrier.epoch = epoch;
  carrier.owner = std::move(session);
  return MakeTaggedLinks(std::move(carrier));
}

}  // namespace horoacc
