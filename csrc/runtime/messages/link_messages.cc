#include "runtime/messages/link_messages.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace horoacc {
namespace {

using Kind = MessageHeader::Kind;

// Bytes that a receiver may keep for one sender; it reports matched ones by quarters of this.
constexpr uint64_t kRoom = 1 << 20;
constexpr uint32_t kHeaders = 64;       // slots of a link for headers
constexpr uint64_t kWindow = 1 << 20;   // bytes; a receiver that gives up waits for so few
constexpr uint32_t kWindows = 4;        // of a message, under way at a time
constexpr int kHeadersAtOnce = 2 * 64;  // a turn, so that other calls of this rank go on

// The part of kRoom that a small message takes: the receiver keeps an empty message, too.
uint64_t Charge(uint64_t bytes) { return bytes + 256; }

LinkSpec ForHeaders(int peer) { return {{kStandingSet, 0}, peer, 0, kHeaders, kSmallMessageBytes}; }
LinkSpec ForMessage(int peer, uint64_t number, uint64_t bytes) {
  return {{kStandingSet, number}, peer, 0, kWindows, std::min(bytes, kWindow)};
}
uint64_t WindowsOf(uint64_t bytes) { return (bytes + kWindow - 1) / kWindow; }
uint64_t WindowLength(uint64_t bytes, uint64_t window) {
  return std::min(kWindow, bytes - window * kWindow);
}

Error Damaged(int rank) {
  return MakeError(ErrorKind::kSystem, "the header of a message is damaged", rank);
}

}  // namespace

Status LinkMessages::Send(std::shared_ptr<MessageEntry> entry) {
  const Message& message = entry->message;
  Fresh fresh{{}, {}, message.peer, entry};
  fresh.header.process_set = entry->process_set;
  fresh.header.tag = message.tag;
  fresh.header.bytes = message.bytes;
  bool small = false;
  {
    std::lock_guard lock(fresh_mutex_);
    uint64_t& kept = kept_there_[message.peer];
    small = message.bytes <= kSmallMessageBytes && kept + Charge(message.bytes) <= kRoom;
    fresh.header.number = ++numbers_;
    if (small) {
      kept += Charge(message.bytes);
      fresh.header.kind = Kind::kSmall;
      const std::byte* const input = entry->tensors[0].input;
      fresh.inside.assign(input, input + message.bytes);
      fresh.entry = nullptr;
    }
    fresh_.push_back(std::move(fresh));
    unposted_.fetch_add(1, std::memory_order_relaxed);
    unheard_.fetch_add(1, std::memory_order_relaxed);
  }
  if (small) events_.finish(std::move(entry), {});
  return {};
}

void LinkMessages::TakeFresh() {
  if (!HasUnposted()) return;
  std::vector<Fresh> fresh;
  {
    std::lock_guard lock(fresh_mutex_);
    fresh.swap(fresh_);
  }
  for (Fresh& each : fresh) {
    if (each.entry) outgoing_[each.header.number].entry = std::move(each.entry);
    Tell(each.peer, each.header, std::move(each.inside));
  }
  unposted_.fetch_sub(fresh.size(), std::memory_order_relaxed);
  unheard_.fetch_sub(fresh.size(), std::memory_order_relaxed);
}

void LinkMessages::Tell(int rank, MessageHeader header, Bytes inside) {
  if (has_left_(rank)) return;
  header.check = header.Checksum();
  const auto bytes = std::as_bytes(std::span(&header, 1));
  Post(rank, {bytes.begin(), bytes.end()});
  if (!inside.empty()) Post(rank, std::move(inside));
}

void LinkMessages::Post(int rank, Bytes bytes) {
  peers_[rank].unposted.push_back(std::move(bytes));
  unposted_.fetch_add(1, std::memory_order_relaxed);
  unheard_.fetch_add(1, std::memory_order_relaxed);
}

void LinkMessages::Close(Peer& peer) {
  unposted_.fetch_sub(peer.unposted.size(), std::memory_order_relaxed);
  unheard_.fetch_sub(peer.unposted.size() + peer.posted.size(), std::memory_order_relaxed);
  std::ranges::move(peer.posted, std::back_inserter(retired_));
  peer = {};
}

Result<bool> LinkMessages::Progress(DataLinks& links) {
  bool moved = false;
  for (const int caller : links.TakeCallers()) {
    std::unique_ptr<ReceiveLink>& in = peers_[caller].in;
    if (in) return Damaged(caller);
    HA_ASSIGN(in, links.OpenReceive(ForHeaders(caller)));
    HA_TRY(in->Expect(sizeof(MessageHeader), {}));
    moved = true;
  }
  for (auto& [rank, peer] : peers_) {
    HA_ASSIGN(const bool heard, Listen(rank, peer));
    moved |= heard;
  }
  HA_ASSIGN(const bool got, Get(links));
  HA_ASSIGN(const bool given, Give(links));
  for (auto& [rank, peer] : peers_) {
    // What it sent was heard before it left.
    if (has_left_(rank)) Close(peer);
    HA_ASSIGN(const bool spoke, Speak(links, rank, peer));
    moved |= spoke;
  }
  return moved || got || given;
}

Result<bool> LinkMessages::Speak(DataLinks& links, int rank, Peer& peer) {
  bool moved = false;
  if (!peer.out && !peer.unposted.empty()) {
    HA_ASSIGN(peer.out, links.OpenSend(ForHeaders(rank)));
  }
  for (; !peer.posted.empty() && peer.out->taken() > peer.heard; ++peer.heard, moved = true) {
    peer.posted.pop_front();
    unheard_.fetch_sub(1, std::memory_order_relaxed);
  }
  for (; !peer.unposted.empty() && peer.out->HasRoom(); moved = true) {
    peer.posted.push_back(std::move(peer.unposted.front()));
    peer.unposted.pop_front();
    unposted_.fetch_sub(1, std::memory_order_relaxed);
    const std::span<const std::byte> piece(peer.posted.back());
    HA_TRY(peer.out->Post({&piece, 1}));
  }
  return moved;
}

Result<bool> LinkMessages::Listen(int rank, Peer& peer) {
  int count = 0;
  for (; peer.in && count < kHeadersAtOnce; ++count) {
    HA_ASSIGN(const Arrival* const arrival, peer.in->Arrived());
    if (!arrival) break;
    Bytes bytes;
    for (const auto& piece : arrival->pieces) bytes.insert(bytes.end(), piece.begin(), piece.end());
    peer.in->Release();
    HA_TRY(Hear(rank, peer, std::move(bytes)));
    const uint64_t next = peer.announced ? peer.announced->bytes : sizeof(MessageHeader);
    HA_TRY(peer.in->Expect(next, {}));
  }
  return count > 0;
}

Status LinkMessages::Hear(int rank, Peer& peer, Bytes bytes) {
  if (peer.announced)
    return OnOffer(rank, *std::exchange(peer.announced, std::nullopt), std::move(bytes));
  MessageHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.check != header.Checksum()) return Damaged(rank);
  auto outgoing = outgoing_.find(header.number);
  if (outgoing != outgoing_.end() && outgoing->second.entry->message.peer != rank)
    outgoing = outgoing_.end();
  const bool goes_out = outgoing != outgoing_.end();  // otherwise this rank gave up
  switch (header.kind) {
    case Kind::kOffer:
      return OnOffer(rank, header, {});
    case Kind::kSmall:
      if (header.bytes > kSmallMessageBytes) return Damaged(rank);
      if (header.bytes == 0) return OnOffer(rank, header, {});
      peer.announced = header;
      return {};
    case Kind::kWant:
      if (goes_out) outgoing->second.wanted = true;
      return {};
    case Kind::kRefused:
      if (goes_out) {
        const Outgoing over = std::move(outgoing->second);
        outgoing_.erase(outgoing);
        events_.finish(over.entry,
                       over.given_up ? *over.given_up
                       : header.bytes == kGaveUp
                           ? GaveUp(rank, /*sends=*/false)
                           : SizesDiffer(rank_, over.entry->message.bytes, rank, header.bytes));
      }
      return {};
    case Kind::kWithdrawn:
      if (auto incoming = incoming_.extract({rank, header.number})) {
        incoming.mapped().link.reset();  // nothing reads the sender's memory any more:
        Tell(rank, {.kind = Kind::kRefused, .number = header.number, .bytes = kGaveUp});
        events_.finish(std::move(incoming.mapped().entry), GaveUp(rank, /*sends=*/true));
      } else {
        events_.withdrawn(this, rank, header.number);
      }
      return {};
    case Kind::kMatched: {
      std::lock_guard lock(fresh_mutex_);
      uint64_t& kept = kept_there_[rank];
      if (header.bytes > kept) return Damaged(rank);
      kept -= header.bytes;
      return {};
    }
  }
  return Damaged(rank);
}

Status LinkMessages::OnOffer(int rank, const MessageHeader& header, Bytes inside) {
  // A second message of one name would lose its receive.
  if (header.number == 0 || incoming_.contains({rank, header.number})) return Damaged(rank);
  Offer offer;
  offer.way = this;
  offer.name = header.number;
  offer.process_set = header.process_set;
  offer.tag = header.tag;
  offer.from = rank;
  offer.bytes = header.bytes;
  offer.whole = header.kind == Kind::kSmall;
  offer.inside = std::move(inside);
  events_.offered(std::move(offer));
  return {};
}

bool LinkMessages::Take(Offer& offer, const std::shared_ptr<MessageEntry>& entry) {
  const uint64_t room = entry->message.bytes;
  entry->message.source = offer.from;
  if (offer.whole) GiveRoomBack(offer.from, offer.bytes);
  if (offer.bytes != room) {
    // The sender of a small message has completed its call.
    if (!offer.whole)
      Tell(offer.from, {.kind = Kind::kRefused, .number = offer.name, .bytes = room});
    events_.finish(entry, SizesDiffer(offer.from, offer.bytes, rank_, room));
  } else if (offer.whole) {
    std::ranges::copy(offer.inside, entry->tensors[0].output);
    events_.finish(entry, {});
  } else {
    incoming_[{offer.from, offer.name}].entry = entry;
    Tell(offer.from, {.kind = Kind::kWant, .number = offer.name});
  }
  return true;
}

void LinkMessages::GiveRoomBack(int rank, uint64_t bytes) {
  uint64_t& matched = peers_[rank].matched;
  matched += Charge(bytes);
  if (matched < kRoom / 4) return;
  Tell(rank, {.kind = Kind::kMatched, .bytes = std::exchange(matched, 0)});
}

Result<bool> LinkMessages::Give(DataLinks& links) {
  bool moved = false;
  for (auto next = outgoing_.begin(); next != outgoing_.end();) {
    auto& [number, outgoing] = *next;
    const Message& message = outgoing.entry->message;
    const uint64_t windows = WindowsOf(message.bytes);
    if (outgoing.wanted && !outgoing.link && !outgoing.given_up) {
      HA_ASSIGN(outgoing.link, links.OpenSend(ForMessage(message.peer, number, message.bytes)));
    }
    SendLink* const link = outgoing.link.get();
    for (; link && !outgoing.given_up && link->posted() < windows && link->HasRoom();
         moved = true) {
      const std::span<const std::byte> piece(
          outgoing.entry->tensors[0].input + link->posted() * kWindow,
          WindowLength(message.bytes, link->posted()));
      HA_TRY(link->Post({&piece, 1}));
    }
    if (!link || link->posted() < windows || link->taken() < windows) {
      ++next;
      continue;
    }
    const std::shared_ptr<MessageEntry> entry = std::move(outgoing.entry);
    next = outgoing_.erase(next);
    events_.finish(entry, {});
    moved = true;
  }
  return moved;
}

Result<bool> LinkMessages::Get(DataLinks& links) {
  bool moved = false;
  for (auto next = incoming_.begin(); next != incoming_.end();) {
    auto& [name, incoming] = *next;
    const uint64_t bytes = incoming.entry->message.bytes;
    const uint64_t windows = WindowsOf(bytes);
    std::byte* const output = incoming.entry->tensors[0].output;
    if (!incoming.link) {
      HA_ASSIGN(incoming.link, links.OpenReceive(ForMessage(name.first, name.second, bytes)));
    }
    for (;; moved = true) {
      for (; incoming.expected < std::min(windows, incoming.received + kWindows);
           ++incoming.expected) {
        const std::span<std::byte> place(output + incoming.expected * kWindow,
                                         WindowLength(bytes, incoming.expected));
        HA_TRY(incoming.link->Expect(place.size(), {&place, 1}));
      }
      if (incoming.received == windows) break;
      HA_ASSIGN(const Arrival* const arrival, incoming.link->Arrived());
      if (!arrival) break;
      std::byte* to = output + incoming.received * kWindow;
      for (const auto& piece : arrival->pieces) {
        if (!arrival->placed) to = std::ranges::copy(piece, to).out;
      }
      incoming.link->Release();
      ++incoming.received;
    }
    if (incoming.received < windows) {
      ++next;
      continue;
    }
    const std::shared_ptr<MessageEntry> entry = std::move(incoming.entry);
    next = incoming_.erase(next);
    events_.finish(entry, {});
    moved = true;
  }
  return moved;
}

void LinkMessages::Visit(const Visitor& visit) const {
  for (const auto& [number, outgoing] : outgoing_) visit(outgoing.entry, true);
  for (const auto& [name, incoming] : incoming_) visit(incoming.entry, true);
}

bool LinkMessages::Cancel(const MessageEntry& entry, const Error& error) {
  const auto same = [&](const auto& item) { return item.second.entry.get() == &entry; };
  if (const auto found = std::ranges::find_if(incoming_, same); found != incoming_.end()) {
    const auto [rank, number] = found->first;
    const std::shared_ptr<MessageEntry> held = std::move(found->second.entry);
    incoming_.erase(found);  // from here on the link writes to no memory of the caller
    Tell(rank, {.kind = Kind::kRefused, .number = number, .bytes = kGaveUp});
    events_.finish(held, error);
    return true;
  }
  const auto found = std::ranges::find_if(outgoing_, same);
  if (found == outgoing_.end()) return false;
  auto& [number, outgoing] = *found;
  const int peer = entry.message.peer;
  if (!outgoing.given_up) Tell(peer, {.kind = Kind::kWithdrawn, .number = number});
  // The link may read posted windows until the receiver has answered.
  if (outgoing.link && outgoing.link->Reads() && !has_left_(peer)) {
    outgoing.given_up = error;
    return true;
  }
  const std::shared_ptr<MessageEntry> held = std::move(outgoing.entry);
  outgoing_.erase(found);
  events_.finish(held, error);
  return true;
}

std::vector<std::shared_ptr<MessageEntry>> LinkMessages::Drop() {
  std::vector<std::shared_ptr<MessageEntry>> calls;
  Visit([&](const std::shared_ptr<MessageEntry>& entry, bool) { calls.push_back(entry); });
  outgoing_.clear();
  incoming_.clear();
  for (auto& [rank, peer] : peers_) Close(peer);
  peers_.clear();
  return calls;
}

bool LinkMessages::Gives() const {
  return std::ranges::any_of(outgoing_, [](const auto& item) { return item.second.wanted; });
}

}  // namespace horoacc
