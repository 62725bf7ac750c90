#include "transport/data/tagged/tagged_links.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "transport/data/tagged/tagged_ends.h"

namespace horoacc {
namespace {

// Between looks for notices of ranks that were not reached: a look costs as much as there are.
constexpr int64_t kLookForCalls = 10 * kMillisecond;

Notice NoticeOf(NoticeKind kind, const LinkKey& key) {
  Notice notice;
  notice.kind = kind;
  notice.channel = key.channel;
  notice.set = key.collective.set;
  notice.sequence = key.collective.sequence;
  return notice;
}

class TaggedLinks final : public DataLinks {
 public:
  explicit TaggedLinks(TaggedCarrier carrier)
      : requests_(std::move(carrier)), peers_(static_cast<size_t>(requests_.carrier().size)) {}
  ~TaggedLinks() override;

  Result<std::unique_ptr<SendLink>> OpenSend(const LinkSpec& spec) override;
  Result<std::unique_ptr<ReceiveLink>> OpenReceive(const LinkSpec& spec) override;
  std::vector<int> TakeCallers() override { return std::exchange(callers_, {}); }
  Result<bool> Progress() override;
  [[nodiscard]] bool HasUnsent() override;
  void Abort(const Error& error) override;
  [[nodiscard]] int WaitFd() const override { return requests_.carrier().wait_fd; }
  [[nodiscard]] bool MustPoll() const override { return WaitFd() < 0; }
  [[nodiscard]] const char* kind() const override { return requests_.carrier().kind.c_str(); }
  [[nodiscard]] DataCounters counters() const override { return requests_.counters(); }

 private:
  Status Reach(const LinkSpec& spec);
  Status Listen(TaggedPeer& peer, int rank);
  Status Tell(int rank, Notice notice);
  Status Take(int rank, const Notice& notice);
  Result<bool> Move();
  Status LookForCalls();
  Result<bool> MoveNotices(int rank);

  TaggedRequests requests_;
  std::vector<TaggedPeer> peers_;  ///< by rank
  std::vector<int> callers_;
  int64_t next_calls_ns_ = 0;
};

// Only an error's text could throw, for lack of memory: then the process may end.
// NOLINTNEXTLINE(bugprone-exception-escape)
TaggedLinks::~TaggedLinks() {
  for (TaggedPeer& peer : peers_) {
    requests_.Cancel(peer.request);
    for (auto& posted : peer.notices) {
      const auto done = requests_.Test(posted->request, 0);
      // The carrier may still read the memory.
      if (!done.ok() || !done.value()) [[maybe_unused]]
        const Posted* const left = posted.release();
    }
  }
}

Status TaggedLinks::Listen(TaggedPeer& peer, int rank) {
  const ha_piece place{&peer.arriving, sizeof(Notice)};
  HA_ASSIGN(peer.request, requests_.Start(false, rank, TaggedCarrier::kNoticeTag, {&place, 1}));
  return {};
}

Status TaggedLinks::Reach(const LinkSpec& spec) {
  HA_TRY(requests_.Health());
  if (spec.peer < 0 || spec.peer >= requests_.carrier().size ||
      spec.peer == requests_.carrier().rank) {
    return MakeError(ErrorKind::kInvalid, "no data link to rank " + std::to_string(spec.peer));
  }
  if (spec.slots < 1) return MakeError(ErrorKind::kInvalid, "a link has at least one slot");
  TaggedPeer& peer = peers_[spec.peer];
  peer.reached = true;
  return peer.request ? Status() : Listen(peer, spec.peer);
}

Status TaggedLinks::Tell(int rank, Notice notice) {
  auto posted = std::make_unique<Posted>();
  posted->notice = notice;
  posted->notice.epoch = requests_.carrier().epoch;
  const ha_piece place{&posted->notice, sizeof(Notice)};
  HA_ASSIGN(posted->request, requests_.Start(true, rank, TaggedCarrier::kNoticeTag, {&place, 1}));
  peers_[rank].notices.push_back(std::move(posted));
  return {};
}

Result<std::unique_ptr<SendLink>> TaggedLinks::OpenSend(const LinkSpec& spec) {
  HA_TRY(Reach(spec));
  TaggedPeer& peer = peers_[spec.peer];
  const LinkKey key{spec.collective, spec.channel};
  if (peer.sending.contains(key)) {
    return MakeError(ErrorKind::kInvalid, "this link is open already");
  }
  auto link = std::make_unique<TaggedSendLink>(requests_, peer, spec);
  if (const auto granted = peer.grants.extract(key)) link->Grant(granted.mapped());
  peer.sending[key] = link.get();
  if (key.collective.calls()) HA_TRY(Tell(spec.peer, NoticeOf(NoticeKind::kCall, key)));
  return std::unique_ptr<SendLink>(std::move(link));
}

Result<std::unique_ptr<ReceiveLink>> TaggedLinks::OpenReceive(const LinkSpec& spec) {
  HA_TRY(Reach(spec));
  TaggedPeer& peer = peers_[spec.peer];
  const LinkKey key{spec.collective, spec.channel};
  if (peer.receiving.contains(key)) {
    return MakeError(ErrorKind::kInvalid, "this link is open already");
  }
  if (peer.free_tags.empty() && peer.next_tag >= requests_.carrier().most_tag) {
    return MakeError(ErrorKind::kSystem,
                     "no tag is left for another link to rank " + std::to_string(spec.peer));
  }
  if (peer.free_tags.empty()) peer.free_tags.push_back(peer.next_tag++);
  const uint32_t tag = peer.free_tags.back();
  peer.free_tags.pop_back();
  Notice grant = NoticeOf(NoticeKind::kGrant, key);
  grant.tag = tag;
  HA_TRY(Tell(spec.peer, grant));
  auto link = std::make_unique<TaggedReceiveLink>(requests_, peer, spec, tag);
  peer.receiving[key] = link.get();
  return std::unique_ptr<ReceiveLink>(std::move(link));
}

Status TaggedLinks::Take(int rank, const Notice& notice) {
  const std::string from = "from rank " + std::to_string(rank);
  if (notice.magic != Notice::kMagic || notice.epoch != requests_.carrier().epoch) {
    return MakeError(ErrorKind::kMismatch,
                     from + ": a notice belongs to epoch " + std::to_string(notice.epoch) +
                         ", this one is " + std::to_string(requests_.carrier().epoch),
                     rank);
  }
  TaggedPeer& peer = peers_[rank];
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
      return MakeError(ErrorKind::kMismatch,
                       NameOfMessage(notice.key().collective, notice.channel, notice.number,
                                     requests_.carrier().rank) +
                           ": released by rank " + std::to_string(rank) + ", but never sent",
                       rank);
    case NoticeKind::kCall:
      if (!peer.receiving.contains(notice.key())) callers_.push_back(rank);
      return {};
    case NoticeKind::kAbort:
      return MakeError(static_cast<ErrorKind>(notice.number),
                       "rank " + std::to_string(rank) + " gave up: " +
                           std::string(notice.text, ::strnlen(notice.text, sizeof(notice.text))),
                       notice.culprit >= 0 ? static_cast<int>(notice.culprit) : rank);
  }
  return MakeError(ErrorKind::kMismatch, from + ": a notice of an unknown kind", rank);
}

Result<bool> TaggedLinks::MoveNotices(int rank) {
  TaggedPeer& peer = peers_[rank];
  bool moved = false;
  while (true) {
    HA_ASSIGN(const auto length, requests_.Test(peer.request, rank));
    if (!length) break;
    peer.request = nullptr;
    const Notice notice = peer.arriving;
    HA_TRY(Listen(peer, rank));
    HA_TRY(Take(rank, notice));
    moved = true;
  }
  for (const auto& [key, released] : std::exchange(peer.credits, {})) {
    Notice credit = NoticeOf(NoticeKind::kCredit, key);
    credit.number = released;
    HA_TRY(Tell(rank, credit));
    moved = true;
  }
  while (!peer.notices.empty()) {
    HA_ASSIGN(const auto done, requests_.Test(peer.notices.front()->request, rank));
    if (!done) break;
    peer.notices.pop_front();
    moved = true;
  }
  return moved;
}

Status TaggedLinks::LookForCalls() {
  const int64_t now = NowNs();
  if (now < next_calls_ns_) return {};
  next_calls_ns_ = now + kLookForCalls;
  for (int rank = 0; rank < requests_.carrier().size; ++rank) {
    TaggedPeer& peer = peers_[rank];
    if (peer.reached || rank == requests_.carrier().rank) continue;
    if (!peer.request && !Listen(peer, rank).ok()) continue;
    const auto length = requests_.Test(peer.request, rank);
    // Nobody needs this rank, which may have shut down.
    if (!length.ok()) requests_.Cancel(std::exchange(peer.request, nullptr));
    if (!length.ok() || !length.value()) continue;
    peer.request = nullptr;
    peer.reached = true;
    HA_TRY(Take(rank, peer.arriving));
    HA_TRY(Listen(peer, rank));
  }
  return {};
}

Result<bool> TaggedLinks::Move() {
  HA_TRY(LookForCalls());
  bool moved = !callers_.empty();
  for (int rank = 0; rank < requests_.carrier().size; ++rank) {
    TaggedPeer& peer = peers_[rank];
    if (!peer.reached) continue;
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
  HA_TRY(requests_.TestOrphans());
  return moved;
}

Result<bool> TaggedLinks::Progress() {
  HA_TRY(requests_.Health());
  auto moved = Move();
  if (!moved.ok()) requests_.Fail(moved.error());
  return moved;
}

bool TaggedLinks::HasUnsent() {
  if (requests_.failed()) return false;
  return std::ranges::any_of(peers_, [](const TaggedPeer& peer) {
    return !peer.notices.empty() || !peer.credits.empty() ||
           std::ranges::any_of(peer.sending,
                               [](const auto& each) { return each.second->unsent(); });
  });
}

void TaggedLinks::Abort(const Error& error) {
  const Error cause = requests_.failed().value_or(error);
  Notice notice;
  notice.kind = NoticeKind::kAbort;
  notice.number = static_cast<uint64_t>(cause.kind);
  notice.culprit = cause.culprit;
  cause.message.copy(notice.text, sizeof(notice.text) - 1);
  for (int rank = 0; rank < requests_.carrier().size; ++rank) {
    TaggedPeer& peer = peers_[rank];
    if (!peer.reached) continue;
    // Buffers of receives must not be written to any more.
    for (const auto& [key, link] : peer.receiving) link->GiveBack();
    requests_.Cancel(std::exchange(peer.request, nullptr));
    [[maybe_unused]] const Status told = Tell(rank, notice);
    if (!told.ok() || peer.notices.empty()) continue;
    const auto pushed = requests_.Test(peer.notices.back()->request, rank);
    if (pushed.ok() && pushed.value()) peer.notices.pop_back();
  }
  requests_.Fail(cause);
}

}  // namespace

std::unique_ptr<DataLinks> MakeTaggedLinks(TaggedCarrier carrier) {
  return std::make_unique<TaggedLinks>(std::move(carrier));
}

}  // namespace horoacc
