#include "transport/data/tcp/tcp_peer.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/clock.h"

namespace horoacc {
namespace {

/// Batches of one connection before the next connection has its turn.
constexpr int kBatchesAtOnce = 8;
/// Reads of a broken connection in search of its last frame.
constexpr int kReadsForLastWords = 64;

}  // namespace

std::string PackAbort(const Error& error) {
  return std::to_string(static_cast<int>(error.kind)) + " " + std::to_string(error.culprit) + " " +
         error.message;
}

Error UnpackAbort(std::string_view text, int rank) {
  const std::string words(text);
  const size_t first = std::min(words.find(' '), words.size());
  const size_t second = std::min(words.find(' ', first + 1), words.size());
  ErrorKind kind = ErrorKind::kAborted;
  int culprit = rank;
  const auto number = [&words](size_t begin) {
    int found = 0;
    std::from_chars(words.data() + begin, words.data() + words.size(), found);
    return found;
  };
  if (second < words.size()) {
    const int given = number(0);
    // An error of the peer's own call (kInvalid ...) is kAborted here.
    const bool shared = given == static_cast<int>(ErrorKind::kMismatch) ||
                        given == static_cast<int>(ErrorKind::kPeerLost) ||
                        given == static_cast<int>(ErrorKind::kTimeout);
    if (shared) kind = static_cast<ErrorKind>(given);
    if (number(first + 1) >= 0) culprit = number(first + 1);
  }
  const std::string why = second < words.size() ? words.substr(second + 1) : words;
  return MakeError(kind, "rank " + std::to_string(rank) + " gave up: " + why, culprit);
}

Error TcpPeer::Lost(const std::string& why) const {
  return MakeError(ErrorKind::kPeerLost,
                   "lost the data links to rank " + std::to_string(rank_) + ": " + why, rank_);
}

Status TcpPeer::Join(Fd connection, const LinkKeys& keys) {
  StreamSeals seals;
  HA_ASSIGN(seals.send, Seal::Make(sealing_, keys.send, Seal::End::kSend));
  HA_ASSIGN(seals.receive, Seal::Make(sealing_, keys.receive, Seal::End::kReceive));
  PrepareStream(connection.get(), fixed_buffer_);
  LimitSilence(connection.get(), host_timeout_ns_);
  const size_t index = streams_.size();
  auto stream = std::make_unique<TcpStream>(std::move(connection), epoch_, checksums_, traffic_,
                                            counters_, std::move(seals));
  // There is room in all of them before one grows: they stay in step if there is no memory.
  streams_.reserve(index + 1);
  full_.reserve(index + 1);
  owes_.reserve(index + 1);
  heartbeats_.reserve(index + 1);
  closed_.reserve(index + 1);
  const uint64_t mark = (static_cast<uint64_t>(rank_) << 16) + index;
  epoll_event event{.events = EPOLLIN, .data = {.u64 = mark}};
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, stream->fd().get(), &event) != 0) {
    return SystemError("epoll_ctl");
  }
  streams_.push_back(std::move(stream));
  Count(counters_.connections);
  full_.push_back(false);
  owes_.push_back(false);
  heartbeats_.emplace_back();
  closed_.push_back(false);
  ++open_;
  return {};
}

void TcpPeer::Watch(size_t stream, bool writing) {
  if (full_[stream] == writing) return;
  full_[stream] = writing;
  const uint64_t mark = (static_cast<uint64_t>(rank_) << 16) + stream;
  const uint32_t events = writing ? EPOLLIN | EPOLLOUT : EPOLLIN;
  epoll_event event{.events = events, .data = {.u64 = mark}};
  ::epoll_ctl(epoll_, EPOLL_CTL_MOD, streams_[stream]->fd().get(), &event);
}

/// Reads until the peer's last frame, or until no byte is left.
void TcpPeer::HearOut(size_t stream) {
  for (int count = 0; count < kReadsForLastWords && !told_ && !left_; ++count) {
    const auto open = streams_[stream]->Read(*this);
    if (!open.ok() || !open.value() || !streams_[stream]->TakeMoved()) return;
  }
}

/// A connection often breaks because the peer aborted or shut down in order; the frame that says so
/// may lie in another connection. True if it shut down and left no message half sent (`cut`).
Result<bool> TcpPeer::Broken(Error error, size_t stream, bool cut) {
  if (error.kind == ErrorKind::kMismatch) {
    error.culprit = rank_;
    return std::move(error).Within("from rank " + std::to_string(rank_));
  }
  for (size_t other = 0; other < streams_.size() && !left_; ++other) {
    if (other != stream && !closed_[other]) HearOut(other);
  }
  if (told_) return *told_;
  if (left_ && !cut) {
    HA_TRY(Finish(stream));
    return true;
  }
  if (error.kind == ErrorKind::kPeerLost) return error;
  return Lost("connection " + std::to_string(stream + 1) + " of " + std::to_string(streams()) +
              ": " + error.message);
}

Result<bool> TcpPeer::SendOn(size_t stream) {
  TcpStream& own = *streams_[stream];
  bool moved = false;
  for (int count = 0; count < kBatchesAtOnce; ++count) {
    if (!own.sending()) {
      HA_ASSIGN(const bool filled, own.Fill(outbound_, most_streams_));
      if (!filled) break;
    }
    const uint64_t before = traffic_.bytes_sent;
    auto done = own.Flush();
    if (!done.ok()) {
      // A peer that shut down needs no more frames; CheckPresence finds missing messages.
      HearOut(stream);
      return Broken(std::move(done.error()), stream, false);
    }
    moved = moved || traffic_.bytes_sent > before;
    owes_[stream] = true;
    Watch(stream, !done.value());
    if (!done.value()) break;
  }
  return moved;
}

Result<bool> TcpPeer::Send() {
  if (left_) outbound_.Forgive();
  bool moved = false;
  for (size_t stream = 0; stream < streams_.size(); ++stream) {
    if (closed_[stream]) continue;
    // The next connection is used only while this one is full.
    if (!outbound_.empty() || streams_[stream]->sending()) {
      HA_ASSIGN(const bool took, SendOn(stream));
      moved = moved || took;
    }
    if (outbound_.empty() && !streams_[stream]->sending()) streams_[stream]->Rest();
  }
  return moved;
}

Status TcpPeer::Finish(size_t stream) {
  if (closed_[stream]) return {};
  closed_[stream] = true;
  --open_;
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, streams_[stream]->fd().get(), nullptr);
  return {};
}

Result<bool> TcpPeer::Read(size_t stream) {
  if (stream >= streams_.size() || closed_[stream]) return false;
  TcpStream& own = *streams_[stream];
  auto open = own.Read(*this);
  if (told_) return *told_;
  if (!open.ok()) return Broken(std::move(open.error()), stream, false);
  if (!open.value()) {
    const char* const how = own.partial() ? "it ended in the middle of a message" : "it ended";
    return Broken(MakeError(ErrorKind::kSystem, how), stream, own.partial());
  }
  return own.TakeMoved();
}

Status TcpPeer::CheckPresence() const {
  if (gone() && (inbound_.waiting() || outbound_.waiting())) {
    return Lost("it has shut down, but messages to or from it are missing");
  }
  return {};
}

bool TcpPeer::HasUnsent() const {
  if (gone()) return false;
  return !outbound_.empty() ||
         std::ranges::any_of(streams_, [](const auto& stream) { return stream->sending(); });
}

bool TcpPeer::full() const { return std::ranges::find(full_, true) != full_.end(); }

bool TcpPeer::watched() const {
  for (size_t stream = 0; stream < streams_.size(); ++stream) {
    if (!closed_[stream] && (full_[stream] || owes_[stream])) return true;
  }
  return false;
}

bool TcpPeer::Reads(const OutboundLink* link) const {
  return link->waiting() ||
         std::ranges::any_of(streams_, [link](const auto& stream) { return stream->Reads(link); });
}

void TcpPeer::Detach(const OutboundLink* link) {
  for (const auto& stream : streams_) stream->Detach(link);
}

Status TcpPeer::LookAfterStreams() {
  const bool received = traffic_.bytes_received > looked_at_;
  looked_at_ = traffic_.bytes_received;
  std::vector<int64_t> silent;
  for (size_t stream = 0; stream < streams_.size(); ++stream) {
    const bool full = full_[stream];
    const bool owes = owes_[stream];
    if (closed_[stream] || (!full && !owes && !received)) continue;
    const int fd = streams_[stream]->fd().get();
    const StreamHealth health = HealthOf(fd);
    const int64_t since = heartbeats_[stream].Look(health, NowNs());
    owes_[stream] = health.owes;
    if (health.owes) silent.push_back(since);
    if (fixed_buffer_ > 0) continue;
    if (full) AdaptBuffer(fd, Direction::kSend, health.under_way());
    if (received) AdaptBuffer(fd, Direction::kReceive, health.received);
  }
  if (!IsGone(silent, host_timeout_ns_)) return {};
  return Lost(SilenceText(std::ranges::max(silent), host_timeout_ns_));
}

void TcpPeer::End(DataKind words, std::string_view text) {
  DataHeader header;
  header.kind = words;
  for (size_t stream = 0; stream < streams_.size(); ++stream) {
    if (closed_[stream]) continue;
    TcpStream& own = *streams_[stream];
    if (!own.sending() && own.Queue(header, text).ok()) {
      [[maybe_unused]] const auto said = own.Flush();
    }
    ::shutdown(own.fd().get(), SHUT_WR);
    // Closing with unread bytes would reset the connection and lose the last frame.
    for (int count = 0; count < 64; ++count) {
      if (::recv(own.fd().get(), nullptr, 1 << 20, MSG_DONTWAIT | MSG_TRUNC) <= 0) break;
    }
  }
  inbound_.DropAll();
  streams_.clear();
  full_.clear();
  owes_.clear();
  heartbeats_.clear();
  closed_.clear();
  open_ = 0;
}

Result<std::shared_ptr<InboundMessage>> TcpPeer::OnStripe(const DataHeader& stripe) {
  return inbound_.Take(stripe);
}

Status TcpPeer::OnNotice(const DataHeader& header, std::string_view text) {
  switch (header.kind) {
    case DataKind::kCredit:
      if (outbound_.Credit({header.collective(), header.channel}, header.number)) return {};
      return MakeError(ErrorKind::kMismatch,
                       NameOfMessage(header.collective(), header.channel, header.number, rank_) +
                           ": released, but never sent");
    case DataKind::kAbort:
      told_ = UnpackAbort(text, rank_);
      return {};
    case DataKind::kLeave:
      left_ = true;
      return {};
    case DataKind::kWiden:
      asks_to_widen_ = true;
      return {};
    case DataKind::kStripe:
      break;
  }
  return MakeError(ErrorKind::kMismatch, "a frame of an unknown kind");
}

}  // namespace horoacc
