#include "transport/data/tcp/tcp_outbound.h"

#include <algorithm>
#include <utility>

namespace horoacc {
namespace {

// A shorter stripe would cost as much as its header and system call.
constexpr uint64_t kShortestStripe = 64 << 10;
constexpr uint64_t kPage = 4096;
// Linux takes 1024 pieces a call; a stripe of more pieces is cut.
constexpr size_t kPiecesAtOnce = 256;

uint64_t StripeOf(uint64_t total, int streams) {
  const uint64_t share = (total / static_cast<uint64_t>(streams) + kPage - 1) / kPage * kPage;
  return std::clamp(share, kShortestStripe, Outbound::kLongestStripe);
}

}  // namespace

void OutboundLink::Post(uint64_t number, SendPieces pieces) {
  Message message{number, 0, 0, {pieces.begin(), pieces.end()}};
  for (const auto& piece : pieces) message.total += piece.size();
  waiting_.push_back(std::move(message));
  posted_ = number + 1;
}

Result<OutboundLink*> Outbound::Open(const LinkKey& key) {
  if (links_.contains(key)) return MakeError(ErrorKind::kInvalid, "this link is open already");
  return links_.emplace(key, std::make_unique<OutboundLink>(key)).first->second.get();
}

void Outbound::Close(OutboundLink* link) {
  std::erase(ready_, link);
  links_.erase(LinkKey(link->key()));
}

void Outbound::Post(OutboundLink& link, SendPieces pieces) {
  link.Post(link.posted(), pieces);
  if (!link.queued_) ready_.push_back(&link);
  link.queued_ = true;
}

bool Outbound::Credit(const LinkKey& key, uint64_t released) {
  const auto found = links_.find(key);
  if (found == links_.end()) return true;  // the link was closed meanwhile
  OutboundLink& link = *found->second;
  if (released > link.posted_) return false;
  // Credits of one link may overtake each other on different streams.
  link.taken_ = std::max(link.taken_, released);
  return true;
}

bool Outbound::waiting() const {
  return std::ranges::any_of(links_, [](const auto& each) {
    return !each.first.collective.standing() && each.second->taken_ < each.second->posted_;
  });
}

std::optional<OutboundFrame> Outbound::Next(uint64_t epoch, int streams, std::vector<iovec>& to) {
  OutboundFrame frame;
  frame.header.epoch = epoch;
  const auto address = [&frame](const LinkKey& key) {
    frame.header.channel = key.channel;
    frame.header.set = key.collective.set;
    frame.header.sequence = key.collective.sequence;
  };
  if (std::exchange(widen_, false)) {
    frame.header.kind = DataKind::kWiden;
    return frame;
  }
  if (!credits_.empty()) {
    const auto first = credits_.begin();
    frame.header.kind = DataKind::kCredit;
    address(first->first);
    frame.header.number = first->second;
    credits_.erase(first);
    return frame;
  }
  if (ready_.empty()) return std::nullopt;
  OutboundLink& link = *ready_.front();
  ready_.pop_front();
  OutboundLink::Message& message = link.waiting_.front();
  address(link.key_);
  frame.link = &link;
  frame.header.number = message.number;
  frame.header.total = message.total;
  frame.header.offset = message.sent;
  const uint64_t length = std::min(message.total - message.sent, StripeOf(message.total, streams));
  const uint64_t part = AppendPart(std::span<const std::span<const std::byte>>(message.pieces),
                                   message.sent, length, kPiecesAtOnce, to);
  frame.header.length = static_cast<uint32_t>(part);
  message.sent += part;
  if (message.sent == message.total) link.waiting_.pop_front();
  link.queued_ = !link.waiting_.empty();
  if (link.queued_) ready_.push_back(&link);
  return frame;
}

}  // namespace horoacc
