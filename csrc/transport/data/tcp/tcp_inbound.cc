#include "transport/data/tcp/tcp_inbound.h"

#include <algorithm>
#include <string>
#include <utility>

#include "transport/data/slot_memory.h"

namespace horoacc {
namespace {

/// The longest message that a stripe may announce before its link is open; only bytes that arrive
/// touch its pages.
constexpr uint64_t kLongestEarly = 1ULL << 32;
constexpr uint64_t kMostEarly = 1 << 16;
constexpr size_t kClosedKept = 1024;

}  // namespace

void InboundMessage::Own(uint64_t bytes) {
  own_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
  pieces_.assign(1, std::span(own_.get(), bytes));
}

void InboundMessage::Place(ReceivePieces where) {
  pieces_.assign(where.begin(), where.end());
  placed_ = true;
}

uint64_t InboundMessage::AppendTarget(uint64_t offset, uint64_t length, size_t room,
                                      std::vector<iovec>& to) {
  return AppendPart(std::span<const std::span<std::byte>>(pieces_), offset, length, room, to);
}

Error InboundLink::Misfit(uint64_t number, const std::string& what) const {
  return MakeError(ErrorKind::kMismatch,
                   NameOfMessage(key_.collective, key_.channel, number, peer_) + ": " + what,
                   peer_);
}

Status InboundLink::Open(const LinkSpec& spec) {
  open_ = true;
  spec_ = spec;
  for (const auto& [number, message] : messages_) {
    if (number >= spec_.slots) {
      return Misfit(number, "the link has " + std::to_string(spec_.slots) + " slots here");
    }
    if (message->total_ > spec_.slot_bytes) {
      return Misfit(number, std::to_string(message->total_) + " bytes came for a slot of " +
                                std::to_string(spec_.slot_bytes));
    }
  }
  return {};
}

/// Made before its place: without memory for it there is no place without a message.
std::shared_ptr<InboundMessage>& InboundLink::Of(uint64_t number) {
  auto found = messages_.find(number);
  if (found == messages_.end()) {
    found = messages_.emplace(number, std::make_shared<InboundMessage>()).first;
  }
  return found->second;
}

Status InboundLink::Expect(uint64_t bytes, ReceivePieces where) {
  HA_TRY(CheckExpect(spec_, announced_ - released_, bytes, where));
  auto& message = Of(announced_);
  ++announced_;
  message->announced_ = true;
  message->expected_ = bytes;
  // A message that has begun to arrive stays where it is.
  if (!message->begun_ && !where.empty()) message->Place(where);
  return {};
}

Result<std::shared_ptr<InboundMessage>> InboundLink::Take(const DataHeader& stripe) {
  const uint64_t number = stripe.number;
  if (number < released_ || number >= released_ + (open_ ? spec_.slots : kMostEarly)) {
    return Misfit(number, "it has no slot here; " + std::to_string(released_) +
                              " messages were released before");
  }
  if (stripe.total > (open_ ? spec_.slot_bytes : kLongestEarly)) {
    return Misfit(number, std::to_string(stripe.total) + " bytes came for a slot of " +
                              std::to_string(spec_.slot_bytes));
  }
  auto& message = Of(number);
  if (!message->begun_) {
    message->begun_ = true;
    message->total_ = stripe.total;
    if (message->announced_ && message->expected_ != stripe.total) {
      message->placed_ = false;  // Arrived reports it; the bytes are discarded
      message->dropped_ = true;
    } else if (!message->placed_) {
      message->Own(stripe.total);
    }
  }
  if (message->total_ != stripe.total || stripe.offset > stripe.total ||
      stripe.length > stripe.total - stripe.offset ||
      message->received_ + stripe.length > message->total_) {
    return Misfit(number, "its parts contradict each other");
  }
  return message;
}

Result<const Arrival*> InboundLink::Arrived() {
  const auto oldest = messages_.find(released_);
  if (oldest == messages_.end()) return nullptr;
  InboundMessage& message = *oldest->second;
  if (message.begun_ && message.announced_ && message.total_ != message.expected_) {
    return Misfit(released_, std::to_string(message.total_) + " bytes came, " +
                                 std::to_string(message.expected_) + " were expected");
  }
  if (!message.announced_ || !message.complete()) return nullptr;
  message.arrived_.assign(message.pieces_.begin(), message.pieces_.end());
  arrival_ = {message.arrived_, message.placed_};
  return &arrival_;
}

void InboundLink::Release() {
  messages_.erase(released_);
  ++released_;
}

void InboundLink::DropAll() {
  for (const auto& [number, message] : messages_) message->Drop();
}

bool InboundLink::waiting() const {
  return !key_.collective.standing() && std::ranges::any_of(messages_, [](const auto& each) {
    return each.second->announced_ && !each.second->complete();
  });
}

InboundLink& Inbound::Of(const LinkKey& key) {
  auto found = links_.find(key);
  if (found == links_.end()) {
    found = links_.emplace(key, std::make_unique<InboundLink>(key, peer_)).first;
  }
  return *found->second;
}

Result<InboundLink*> Inbound::Open(const LinkSpec& spec) {
  const LinkKey key{spec.collective, spec.channel};
  if (closed_.contains(key)) {
    return MakeError(ErrorKind::kInvalid, NameOfMessage(spec.collective, spec.channel, 0, peer_) +
                                              ": its link was closed already");
  }
  InboundLink& link = Of(key);
  if (link.open()) {
    return MakeError(ErrorKind::kInvalid, NameOfMessage(spec.collective, spec.channel, 0, peer_) +
                                              ": its link is open already");
  }
  HA_TRY(link.Open(spec));
  return &link;
}

void Inbound::Close(InboundLink* link) {
  link->DropAll();
  closed_order_.splice(closed_order_.end(), link->closed_place_);
  auto place = links_.extract(link->key());
  place.mapped().reset();
  closed_.insert(std::move(place));
  if (closed_order_.size() > kClosedKept) {
    closed_.erase(closed_order_.front());
    closed_order_.pop_front();
  }
}

Result<std::shared_ptr<InboundMessage>> Inbound::Take(const DataHeader& stripe) {
  const LinkKey key{stripe.collective(), stripe.channel};
  if (closed_.contains(key)) {
    auto stale = std::make_shared<InboundMessage>();
    stale->Drop();
    return stale;
  }
  called_ = called_ || (key.collective.calls() && !links_.contains(key));
  return Of(key).Take(stripe);
}

void Inbound::DropAll() {
  for (const auto& [key, link] : links_) link->DropAll();
}

bool Inbound::waiting() const {
  return std::ranges::any_of(links_, [](const auto& each) { return each.second->waiting(); });
}

}  // namespace horoacc
