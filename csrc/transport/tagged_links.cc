#include "transport/tagged_links.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "transport/data_frame.h"
#include "transport/slot_memory.h"

namespace horoacc {
namespace {

enum class NoticeKind : uint8_t { kGrant = 1, kCredit = 2, kAbort = 3 };

struct Notice {
  uint32_t magic = kMagic;
  NoticeKind kind = NoticeKind::kGrant;
  uint8_t channel = 0;
  uint16_t reserved = 0;
  uint64_t epoch = 0;
  uint64_t sequence = 0;
  uint32_t set = 0;
  uint32_t tag = 0;     ///< of a grant
  uint64_t number = 0;  ///< of a credit: messages released so far; of an abort: kind of error
  int64_t culprit = -1;
  char text[208] = "";

  static constexpr uint32_t kMagic = 0x4e434148;  // "HACN"
  [[nodiscard]] LinkKey key() const { return {{set, sequence}, channel}; }
};
static_assert(sizeof(Notice) == 256);

/// A notice on its way. What the carrier has not taken when the links go stays for good.
struct Posted {
  Notice notice;
  void* request = nullptr;
};

class TaggedSendLink;
class TaggedReceiveLink;

struct Peer {
  bool met = false;
  Notice arriving;
  void* request = nullptr;  ///< for `arriving`
  std::deque<std::unique_ptr<Posted>> notices;
  std::map<LinkKey, uint64_t> credits;  ///< to be told
  std::map<LinkKey, uint32_t> grants;   ///< that came before their link was opened
  std::map<LinkKey, TaggedSendLink*> sending;
  std::map<LinkKey, TaggedReceiveLink*> receiving;
  std::vector<uint32_t> free_tags;
  uint32_t next_tag = TaggedCarrier::kFirstTag;
};

class TaggedLinks final : public DataLinks {
 public:
  explicit TaggedLinks(TaggedCarrier carrier)
      : carrier_(std::move(carrier)), peers_(static_cast<size_t>(carrier_.size)) {}
  ~TaggedLinks() override;

  Result<std::unique_ptr<SendLink>> OpenSend(const LinkSpec& spec) override;
  Result<std::unique_ptr<ReceiveLink>> OpenReceive(const LinkSpec& spec) override;
  Result<bool> Progress() override;
  [[nodiscard]] bool HasUnsent() override;
  void Abort(const Error& error) override;
  [[nodiscard]] int WaitFd() const override { return carrier_.wait_fd; }
  [[nodiscard]] bool MustPoll() const override { return carrier_.wait_fd < 0; }
  [[nodiscard]] const char* kind() const override { return carrier_.kind.c_str(); }
  [[nodiscard]] DataCounters counters() const override { return counters_; }

  [[nodiscard]] Status Health() const { return failed_ ? Status(*failed_) : Status(); }
  Peer& peer(int rank) { return peers_[rank]; }
  DataCounters& count() { return counters_; }
  Result<void*> Start(bool send, int peer, uint32_t tag, std::span<const ha_piece> pieces);
  /// The length of what was received once the request is done.
  Result<std::optional<uint64_t>> Test(void* request, int peer);
  void Cancel(void* request) {
    if (request != nullptr) carrier_.calls.cancel(carrier_.self, request);
  }
  /// A message that the carrier still sends although its link is closed.
  void Adopt(int peer, void* request) { orphans_.emplace_back(peer, request); }

 private:
  Status Meet(const LinkSpec& spec);
  Status Listen(Peer& peer, int rank);
  Status Tell(int rank, Notice notice);
  Status Take(int rank, const Notice& notice);
  Result<bool> Move();
  Result<bool> MoveNotices(int rank);

  TaggedCarrier carrier_;
  std::vector<Peer> peers_;  ///< by rank
  std::vector<std::pair<int, void*>> orphans_;
  DataCounters counters_;
  std::optional<Error> failed_;
};

template <typename Piece>
std::vector<ha_piece> Listed(std::span<const Piece> pieces) {
  std::vector<ha_piece> list;
  for (const auto& piece : pieces) {
    if (!piece.empty()) list.push_back({const_cast<std::byte*>(piece.data()), piece.size()});
  }
  return list;
}

class TaggedSendLink final : public SendLink {
 public:
  TaggedSendLink(TaggedLinks& links, const LinkSpec& spec)
      : SendLink(spec.slots), links_(links), spec_(spec), memory_(spec.slots, spec.slot_bytes) {}
  ~TaggedSendLink() override {
    links_.peer(spec_.peer).sending.erase(key());
    for (void* const request : under_way_) links_.Adopt(spec_.peer, request);
  }
  TaggedSendLink(const TaggedSendLink&) = delete;
  TaggedSendLink& operator=(const TaggedSendLink&) = delete;

  [[nodiscard]] LinkKey key() const { return {spec_.collective, spec_.channel}; }
  [[nodiscard]] uint64_t taken() override { return std::min(credited_, completed_); }
  [[nodiscard]] Result<std::byte*> Slot() override {
    HA_TRY(links_.Health());
    return memory_.Of(posted());
  }
  void Grant(uint32_t tag) { tag_ = tag; }
  /// False if so much was never posted.
  bool Credit(uint64_t released) {
    credited_ = std::max(credited_, released);
    return released <= posted();
  }
  [[nodiscard]] bool unsent() const { return !waiting_.empty() || !under_way_.empty(); }

  Result<bool> Move() {
    bool moved = false;
    for (; tag_ && !waiting_.empty(); waiting_.pop_front()) {
      HA_ASSIGN(void* const request, links_.Start(true, spec_.peer, *tag_, waiting_.front()));
      under_way_.push_back(request);
      moved = true;
    }
    while (!under_way_.empty()) {
      HA_ASSIGN(const auto done, links_.Test(under_way_.front(), spec_.peer));
      if (!done) break;
      under_way_.pop_front();
      ++completed_;
      moved = true;
    }
    return moved;
  }

 private:
  Status DoPost(uint64_t number, SendPieces pieces) override {
    HA_TRY(links_.Health());
    uint64_t total = 0;
    for (const auto& piece : pieces) total += piece.size();
    HA_TRY(CheckPost(spec_, number, taken(), total));
    links_.count().messages += 1;
    links_.count().bytes += total;
    links_.count().copied += memory_.Share(pieces);
    waiting_.push_back(Listed(pieces));
    return {};
  }

  TaggedLinks& links_;
  const LinkSpec spec_;
  SlotMemory memory_;
  std::optional<uint32_t> tag_;
  std::deque<std::vector<ha_piece>> waiting_;
  std::deque<void*> under_way_;
  uint64_t completed_ = 0;  ///< the carrier reads their memory no more
  uint64_t credited_ = 0;   ///< the receiver has released them
};

class TaggedReceiveLink final : public ReceiveLink {
 public:
  TaggedReceiveLink(TaggedLinks& links, const LinkSpec& spec, uint32_t tag)
      : links_(links), spec_(spec), tag_(tag) {}
  ~TaggedReceiveLink() override {
    Peer& peer = links_.peer(spec_.peer);
    peer.receiving.erase(key());
    // A message may still come for a tag with places that were given back.
    if (expected_.empty()) peer.free_tags.push_back(tag_);
    GiveBack();
  }
  TaggedReceiveLink(const TaggedReceiveLink&) = delete;
  TaggedReceiveLink& operator=(const TaggedReceiveLink&) = delete;

  [[nodiscard]] LinkKey key() const { return {spec_.collective, spec_.channel}; }
  /// From here on nothing is written where messages were expected.
  void GiveBack() {
    for (const auto& message : expected_) {
      if (!message->length) links_.Cancel(std::exchange(message->request, nullptr));
    }
  }

  Status Expect(uint64_t bytes, ReceivePieces where) override {
    HA_TRY(links_.Health());
    HA_TRY(CheckExpect(spec_, expected_.size(), bytes, where));
    auto message = std::make_unique<Message>();
    message->bytes = bytes;
    message->arrival.placed = !where.empty();
    std::vector<std::span<std::byte>> places(where.begin(), where.end());
    if (where.empty()) {
      message->own = std::make_unique_for_overwrite<std::byte[]>(bytes);
      places.assign(1, std::span(message->own.get(), bytes));
    }
    message->pieces.assign(places.begin(), places.end());
    message->arrival.pieces = message->pieces;
    const auto list = Listed(std::span<const std::span<std::byte>>(places));
    HA_ASSIGN(message->request, links_.Start(false, spec_.peer, tag_, list));
    expected_.push_back(std::move(message));
    return {};
  }

  [[nodiscard]] Result<const Arrival*> Arrived() override {
    HA_TRY(links_.Health());
    if (expected_.empty() || !expected_.front()->length) return nullptr;
    const Message& message = *expected_.front();
    if (*message.length == message.bytes) return &message.arrival;
    const std::string came = *message.length == HA_TRANSPORT_TOO_LONG
                                 ? "more bytes"
                                 : std::to_string(*message.length) + " bytes";
    return MakeError(ErrorKind::kMismatch,
                     NameOfMessage(spec_.collective, spec_.channel, released_, spec_.peer) + ": " +
                         came + " came, " + std::to_string(message.bytes) + " were expected",
                     spec_.peer);
  }

  void Release() override {
    expected_.pop_front();
    ++released_;
    links_.peer(spec_.peer).credits[key()] = released_;
  }

  Result<bool> Move() {
    bool moved = false;
    // All of them, so that several are under way at once.
    for (const auto& message : expected_) {
      if (message->length) continue;
      HA_ASSIGN(message->length, links_.Test(message->request, spec_.peer));
      moved = moved || message->length;
    }
    return moved;
  }

 private:
  struct Message {
    uint64_t bytes = 0;
    void* request = nullptr;
    std::optional<uint64_t> length;  ///< what came
    std::unique_ptr<std::byte[]> own;
    std::vector<std::span<const std::byte>> pieces;
    Arrival arrival;
  };

  TaggedLinks& links_;
  const LinkSpec spec_;
  const uint32_t tag_;
  std::deque<std::unique_ptr<Message>> expected_;
  uint64_t released_ = 0;
};

// Nothing but the text of an error could throw, for want of memory: then the process may end.
// NOLINTNEXTLINE(bugprone-exception-escape)
TaggedLinks::~TaggedLinks() {
  for (Peer& peer : peers_) {
    Cancel(peer.request);
    for (auto& posted : peer.notices) {
      const auto done = Test(posted->request, 0);
      // The carrier may still read it.
      if (!done.ok() || !done.value()) [[maybe_unused]]
        const Posted* const left = posted.release();
    }
  }
}

Result<void*> TaggedLinks::Start(bool send, int peer, uint32_t tag,
                                 std::span<const ha_piece> pieces) {
  ha_transport_error error = {};
  void* request = nullptr;
  const auto call = send ? carrier_.calls.send : carrier_.calls.receive;
  if (call(carrier_.self, peer, tag, pieces.data(), pieces.size(), &request, &error) == 0) {
    return request;
  }
  return MakeError(ErrorKind::kPeerLost,
                   "lost the data links to rank " + std::to_string(peer) + ": " + error.message,
                   peer);
}

Result<std::optional<uint64_t>> TaggedLinks::Test(void* request, int peer) {
  ha_transport_error error = {};
  int done = 0;
  size_t bytes = 0;
  if (carrier_.calls.test(carrier_.self, request, &done, &bytes, &error) != 0) {
    return MakeError(ErrorKind::kPeerLost,
                     "lost the data links to rank " + std::to_string(peer) + ": " + error.message,
                     peer);
  }
  return done != 0 ? std::optional<uint64_t>(bytes) : std::nullopt;
}

Status TaggedLinks::Listen(Peer& peer, int rank) {
  const ha_piece place{&peer.arriving, sizeof(Notice)};
  HA_ASSIGN(peer.request, Start(false, rank, TaggedCarrier::kNoticeTag, {&place, 1}));
  return {};
}

Status TaggedLinks::Meet(const LinkSpec& spec) {
  HA_TRY(Health());
  if (spec.peer < 0 || spec.peer >= carrier_.size || spec.peer == carrier_.rank) {
    return MakeError(ErrorKind::kInvalid, "no data link to rank " + std::to_string(spec.peer));
  }
  if (spec.slots < 1) return MakeError(ErrorKind::kInvalid, "a link has at least one slot");
  Peer& peer = peers_[spec.peer];
  if (peer.met) return {};
  peer.met = true;
  return Listen(peer, spec.peer);
}

Status TaggedLinks::Tell(int rank, Notice notice) {
  auto posted = std::make_unique<Posted>();
  posted->notice = notice;
  posted->notice.epoch = carrier_.epoch;
  const ha_piece place{&posted->notice, sizeof(Notice)};
  HA_ASSIGN(posted->request, Start(true, rank, TaggedCarrier::kNoticeTag, {&place, 1}));
  peers_[rank].notices.push_back(std::move(posted));
  return {};
}

Result<std::unique_ptr<SendLink>> TaggedLinks::OpenSend(const LinkSpec& spec) {
  HA_TRY(Meet(spec));
  Peer& peer = peers_[spec.peer];
  const LinkKey key{spec.collective, spec.channel};
  if (peer.sending.contains(key)) {
    return MakeError(ErrorKind::kInvalid, "this link is open already");
  }
  auto link = std::make_unique<TaggedSendLink>(*this, spec);
  if (const auto granted = peer.grants.extract(key)) link->Grant(granted.mapped());
  peer.sending[key] = link.get();
  return std::unique_ptr<SendLink>(std::move(link));
}

Result<std::unique_ptr<ReceiveLink>> TaggedLinks::OpenReceive(const LinkSpec& spec) {
  HA_TRY(Meet(spec));
  Peer& peer = peers_[spec.peer];
  const LinkKey key{spec.collective, spec.channel};
  if (peer.receiving.contains(key)) {
    return MakeError(ErrorKind::kInvalid, "this link is open already");
  }
  if (peer.free_tags.empty() && peer.next_tag >= carrier_.most_tag) {
    return MakeError(ErrorKind::kSystem,
                     "no tag is left for another link to rank " + std::to_string(spec.peer));
  }
  if (peer.free_tags.empty()) peer.free_tags.push_back(peer.next_tag++);
  const uint32_t tag = peer.free_tags.back();
  peer.free_tags.pop_back();
  Notice grant;
  grant.kind = NoticeKind::kGrant;
  grant.channel = spec.channel;
  grant.set = spec.collective.set;
  grant.sequence = spec.collective.sequence;
  grant.tag = tag;
  HA_TRY(Tell(spec.peer, grant));
  auto link = std::make_unique<TaggedReceiveLink>(*this, spec, tag);
  peer.receiving[key] = link.get();
  return std::unique_ptr<ReceiveLink>(std::move(link));
}

Status TaggedLinks::Take(int rank, const Notice& notice) {
  const std::string from = "from rank " + std::to_string(rank);
  if (notice.magic != Notice::kMagic || notice.epoch != carrier_.epoch) {
    return MakeError(ErrorKind::kMismatch,
                     from + ": a notice belongs to epoch " + std::to_string(notice.epoch) +
                         ", this one is " + std::to_string(carrier_.epoch),
                     rank);
  }
  Peer& peer = peers_[rank];
  const auto link = peer.sending.find(notice.key());
  switch (notice.kind) {
    case NoticeKind::kGrant:
      if (link == peer.sending.end()) {
        peer.grants[notice.key()] = notice.tag;
      } else {
        link->second->Grant(notice.tag);
      }
      return {};
    case NoticeKind::kCredit:
      if (link == peer.sending.end() || link->second->Credit(notice.number)) return {};
      return MakeError(
          ErrorKind::kMismatch,
          NameOfMessage(notice.key().collective, notice.channel, notice.number, carrier_.rank) +
              ": released by rank " + std::to_string(rank) + ", but never sent",
          rank);
    case NoticeKind::kAbort:
      return MakeError(static_cast<ErrorKind>(notice.number),
                       "rank " + std::to_string(rank) + " gave up: " +
                           std::string(notice.text, ::strnlen(notice.text, sizeof(notice.text))),
                       notice.culprit >= 0 ? static_cast<int>(notice.culprit) : rank);
  }
  return MakeError(ErrorKind::kMismatch, from + ": a notice of an unknown kind", rank);
}

Result<bool> TaggedLinks::MoveNotices(int rank) {
  Peer& peer = peers_[rank];
  bool moved = false;
  while (true) {
    HA_ASSIGN(const auto length, Test(peer.request, rank));
    if (!length) break;
    peer.request = nullptr;
    const Notice notice = peer.arriving;
    HA_TRY(Listen(peer, rank));
    HA_TRY(Take(rank, notice));
    moved = true;
  }
  for (const auto& [key, released] : std::exchange(peer.credits, {})) {
    Notice credit;
    credit.kind = NoticeKind::kCredit;
    credit.channel = key.channel;
    credit.set = key.collective.set;
    credit.sequence = key.collective.sequence;
    credit.number = released;
    HA_TRY(Tell(rank, credit));
    moved = true;
  }
  while (!peer.notices.empty()) {
    HA_ASSIGN(const auto done, Test(peer.notices.front()->request, rank));
    if (!done) break;
    peer.notices.pop_front();
    moved = true;
  }
  return moved;
}

Result<bool> TaggedLinks::Move() {
  bool moved = false;
  for (int rank = 0; rank < carrier_.size; ++rank) {
    Peer& peer = peers_[rank];
    if (!peer.met) continue;
    HA_ASSIGN(const bool noticed, MoveNotices(rank));
    moved = moved || noticed;
    for (const auto& [key, link] : peer.sending) {
      HA_ASSIGN(const bool sent, link->Move());
      moved = moved || sent;
    }
    for (const auto& [key, link] : peer.receiving) {
      HA_ASSIGN(const bool received, link->Move());
      moved = moved || received;
    }
  }
  for (size_t index = 0; index < orphans_.size();) {
    const auto [rank, request] = orphans_[index];
    HA_ASSIGN(const auto done, Test(request, rank));
    if (!done) {
      ++index;
    } else {
      orphans_.erase(orphans_.begin() + static_cast<std::ptrdiff_t>(index));
    }
  }
  return moved;
}

Result<bool> TaggedLinks::Progress() {
  HA_TRY(Health());
  auto moved = Move();
  if (!moved.ok()) failed_ = moved.error();
  return moved;
}

bool TaggedLinks::HasUnsent() {
  if (failed_) return false;
  return std::ranges::any_of(peers_, [](const Peer& peer) {
    return !peer.notices.empty() || !peer.credits.empty() ||
           std::ranges::any_of(peer.sending,
                               [](const auto& each) { return each.second->unsent(); });
  });
}

void TaggedLinks::Abort(const Error& error) {
  const Error cause = failed_.value_or(error);
  Notice notice;
  notice.kind = NoticeKind::kAbort;
  notice.number = static_cast<uint64_t>(cause.kind);
  notice.culprit = cause.culprit;
  cause.message.copy(notice.text, sizeof(notice.text) - 1);
  for (int rank = 0; rank < carrier_.size; ++rank) {
    Peer& peer = peers_[rank];
    if (!peer.met) continue;
    // Places that were named must not be written to any more.
    for (const auto& [key, link] : peer.receiving) link->GiveBack();
    Cancel(std::exchange(peer.request, nullptr));
    [[maybe_unused]] const Status told = Tell(rank, notice);
    if (!told.ok() || peer.notices.empty()) continue;
    const auto pushed = Test(peer.notices.back()->request, rank);
    if (pushed.ok() && pushed.value()) peer.notices.pop_back();
  }
  failed_ = cause;
}

}  // namespace

std::unique_ptr<DataLinks> MakeTaggedLinks(TaggedCarrier carrier) {
  return std::make_unique<TaggedLinks>(std::move(carrier));
}

}  // namespace horoacc
