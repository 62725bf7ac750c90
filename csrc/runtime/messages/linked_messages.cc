#include "runtime/messages/linked_messages.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "negotiate/wire.h"

namespace horoacc {
namespace {

constexpr uint32_t kChannel = 0xfffffffe;        // not the number of a process set
constexpr uint64_t kSmall = uint64_t{64} << 10;  // longest message that may travel with its offer
// Bytes that a receiver may keep for one sender; it reports matched ones by quarters of this.
constexpr uint64_t kRoom = uint64_t{1} << 20;
constexpr uint64_t kPart = uint64_t{256} << 10;
constexpr uint64_t kPartsAhead = 4;
constexpr uint64_t kGaveUp = std::numeric_limits<uint64_t>::max();  // stands for a size

// The part of kRoom that an eager message takes: the receiver keeps an empty message, too.
uint64_t Charge(uint64_t bytes) { return bytes + 256; }

}  // namespace

LinkedMessages::LinkedMessages(ControlMux& mux, int rank, std::function<void()> wake,
                               MessageSurroundings surroundings)
    : mux_(mux), rank_(rank), wake_(std::move(wake)), surroundings_(std::move(surroundings)) {
  mux_.Register(kChannel, [this](int source, std::span<const std::byte> payload) {
    return OnMessage(source, payload);
  });
}

LinkedMessages::~LinkedMessages() { mux_.Unregister(kChannel); }

WireWriter LinkedMessages::About(Kind kind, uint64_t number) {
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(kind));
  writer.Put(number);
  return writer;
}

Status LinkedMessages::SendTo(int peer, const WireWriter& writer) {
  if (peer != rank_) return mux_.Send(kChannel, peer, writer.bytes());
  std::lock_guard lock(own_mail_mutex_);
  own_mail_.emplace_back(writer.bytes().begin(), writer.bytes().end());
  return {};
}

Status LinkedMessages::Send(std::shared_ptr<MessageEntry> entry) {
  const uint64_t bytes = entry->message.bytes;
  bool eager = false;
  pending_.fetch_add(1, std::memory_order_relaxed);
  {
    std::lock_guard lock(fresh_mutex_);
    uint64_t& kept = kept_there_[entry->message.peer];
    eager = bytes <= kSmall && kept + Charge(bytes) <= kRoom;
    const uint64_t number = ++numbers_;
    WireWriter writer = About(Kind::kOffer, number);
    writer.Put(entry->process_set);
    writer.Put(entry->message.tag);
    writer.Put(bytes);
    const auto* text = reinterpret_cast<const char*>(entry->tensors[0].input);
    writer.Put(static_cast<uint8_t>(eager));
    writer.Put(eager && bytes > 0 ? std::string_view(text, bytes) : std::string_view());
    if (!eager) fresh_sends_.emplace_back(number, entry);
    if (Status sent = SendTo(entry->message.peer, writer); !sent.ok()) {
      if (!eager) fresh_sends_.pop_back();
      pending_.fetch_sub(1, std::memory_order_relaxed);
      return sent;
    }
    if (eager) kept += Charge(bytes);
  }
  if (eager) Finish(std::move(entry), {});
  wake_();
  return {};
}

void LinkedMessages::Receive(std::shared_ptr<MessageEntry> entry) {
  pending_.fetch_add(1, std::memory_order_relaxed);
  {
    std::lock_guard lock(fresh_mutex_);
    fresh_receives_.push_back(std::move(entry));
  }
  wake_();
}

// By value: the caller's pointer may lie in a container that the completion changes.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
void LinkedMessages::Finish(std::shared_ptr<MessageEntry> entry, Status outcome) {
  pending_.fetch_sub(1, std::memory_order_relaxed);
  surroundings_.complete(*entry, std::move(outcome));
}

bool LinkedMessages::Fits(const MessageEntry& receive, const Offer& offer) {
  return receive.process_set == offer.process_set && receive.message.tag == offer.tag &&
         (receive.message.peer == kAnySource || receive.message.peer == offer.name.first);
}

void LinkedMessages::TakeFresh() {
  std::vector<std::shared_ptr<MessageEntry>> receives;
  {
    std::lock_guard lock(fresh_mutex_);
    receives.swap(fresh_receives_);
    for (auto& [number, entry] : fresh_sends_) outgoing_[number].entry = std::move(entry);
    fresh_sends_.clear();
  }
  for (auto& entry : receives) {
    const auto match =
        std::ranges::find_if(offers_, [&](const Offer& offer) { return Fits(*entry, offer); });
    if (match == offers_.end()) {
      receives_.push_back(std::move(entry));
      continue;
    }
    Offer offer = std::move(*match);
    offers_.erase(match);
    (void)Begin(std::move(offer), std::move(entry));  // a lost peer ends the job elsewhere
  }
}

bool LinkedMessages::TakeOwnMail() {
  bool any = false;
  for (;; any = true) {
    std::vector<std::byte> mail;
    {
      std::lock_guard lock(own_mail_mutex_);
      if (own_mail_.empty()) return any;
      mail = std::move(own_mail_.front());
      own_mail_.pop_front();
    }
    (void)OnMessage(rank_, mail);
  }
}

bool LinkedMessages::Progress() {
  bool moved = TakeOwnMail();
  if (!pending()) return moved;
  TakeFresh();
  moved |= SendParts();
  moved |= EndWhatCannotCome();
  moved |= EndOverdue();
  return moved;
}

Status LinkedMessages::OnMessage(int source, std::span<const std::byte> payload) {
  TakeFresh();
  WireReader reader(payload);
  const auto kind = static_cast<Kind>(reader.Get<uint8_t>());
  const auto number = reader.Get<uint64_t>();
  if (!reader.ok()) return Damaged(source);
  switch (kind) {
    case Kind::kOffer:
      return OnOffer(source, number, reader);
    case Kind::kWant:
      if (const auto outgoing = outgoing_.find(number); outgoing != outgoing_.end())
        outgoing->second.wanted += reader.Get<uint32_t>();
      return {};
    case Kind::kPart:
      return OnPart({source, number}, payload.subspan(sizeof(uint8_t) + sizeof number));
    case Kind::kRefused:
      OnRefused(number, reader.Get<uint64_t>(), source);
      return {};
    case Kind::kMatched: {
      std::lock_guard lock(fresh_mutex_);
      uint64_t& kept = kept_there_[source];
      if (number > kept) return Damaged(source);
      kept -= number;
      return {};
    }
    case Kind::kWithdrawn: {
      const Name name{source, number};
      std::erase_if(offers_, [&](const Offer& offer) { return offer.name == name; });
      const auto incoming = incoming_.find(name);
      if (incoming == incoming_.end()) return {};
      std::shared_ptr<MessageEntry> entry = std::move(incoming->second.entry);
      incoming_.erase(incoming);
      Finish(std::move(entry),
             MakeError(ErrorKind::kAborted, "rank " + std::to_string(source) + " gave up sending",
                       source));
      return {};
    }
  }
  return Damaged(source);
}

Status LinkedMessages::OnOffer(int source, uint64_t number, WireReader& reader) {
  Offer offer;
  offer.name = {source, number};
  offer.process_set = reader.Get<uint32_t>();
  offer.tag = reader.Get<int32_t>();
  offer.bytes = reader.Get<uint64_t>();
  offer.eager = reader.Get<uint8_t>() != 0;
  const std::string inside = reader.GetText();
  if (!reader.ok() || inside.size() != (offer.eager ? offer.bytes : 0)) return Damaged(source);
  if (incoming_.contains(offer.name)) return Damaged(source);  // its receive would be lost
  const auto* bytes = reinterpret_cast<const std::byte*>(inside.data());
  offer.inside.assign(bytes, bytes + inside.size());
  const auto match =
      std::ranges::find_if(receives_, [&](const auto& receive) { return Fits(*receive, offer); });
  if (match == receives_.end()) {
    offers_.push_back(std::move(offer));
    return {};
  }
  std::shared_ptr<MessageEntry> entry = std::move(*match);
  receives_.erase(match);
  return Begin(std::move(offer), std::move(entry));
}

Status LinkedMessages::Begin(Offer offer, std::shared_ptr<MessageEntry> entry) {
  const auto [from, number] = offer.name;
  const uint64_t room = entry->message.bytes;
  entry->message.source = from;
  Status given = offer.eager ? GiveRoomBack(from, offer.bytes) : Status();
  if (offer.bytes != room) {
    Finish(std::move(entry), SizesDiffer(from, offer.bytes, rank_, room));
    if (offer.eager) return given;  // the sender has completed its call
    WireWriter writer = About(Kind::kRefused, number);
    writer.Put(room);
    return SendTo(from, writer);
  }
  if (offer.eager) {
    if (room > 0) std::memcpy(entry->tensors[0].output, offer.inside.data(), room);
    Finish(std::move(entry), {});
    return given;
  }
  incoming_[offer.name].entry = std::move(entry);
  WireWriter writer = About(Kind::kWant, number);
  writer.Put(static_cast<uint32_t>(kPartsAhead));
  return SendTo(from, writer);
}

Status LinkedMessages::GiveRoomBack(int source, uint64_t bytes) {
  uint64_t& matched = matched_[source];
  matched += Charge(bytes);
  if (matched < kRoom / 4) return {};
  return SendTo(source, About(Kind::kMatched, std::exchange(matched, 0)));
}

Status LinkedMessages::OnPart(const Name& name, std::span<const std::byte> part) {
  const auto found = incoming_.find(name);
  if (found == incoming_.end()) return {};  // this rank gave up the receive
  Incoming& incoming = found->second;
  if (part.size() > incoming.entry->message.bytes - incoming.got) return Damaged(name.first);
  // Not memcpy: either may be empty, and then has no address.
  std::ranges::copy(part, incoming.entry->tensors[0].output + incoming.got);
  incoming.got += part.size();
  if (incoming.got == incoming.entry->message.bytes) {
    std::shared_ptr<MessageEntry> entry = std::move(incoming.entry);
    incoming_.erase(found);
    Finish(std::move(entry), {});
    return {};
  }
  WireWriter writer = About(Kind::kWant, name.second);
  writer.Put(uint32_t{1});
  return SendTo(name.first, writer);
}

void LinkedMessages::OnRefused(uint64_t number, uint64_t room, int source) {
  const auto found = outgoing_.find(number);
  if (found == outgoing_.end()) return;
  std::shared_ptr<MessageEntry> entry = std::move(found->second.entry);
  outgoing_.erase(found);
  const uint64_t bytes = entry->message.bytes;
  Finish(std::move(entry),
         room == kGaveUp
             ? MakeError(ErrorKind::kAborted,
                         "rank " + std::to_string(source) + " gave up receiving", source)
             : SizesDiffer(rank_, bytes, source, room));
}

bool LinkedMessages::SendParts() {
  bool moved = false;
  for (auto next = outgoing_.begin(); next != outgoing_.end();) {
    auto& [number, outgoing] = *next;
    const uint64_t bytes = outgoing.entry->message.bytes;
    for (; outgoing.wanted > 0 && !outgoing.whole; --outgoing.wanted, moved = true) {
      const uint64_t count = std::min(kPart, bytes - outgoing.sent);
      WireWriter writer = About(Kind::kPart, number);
      writer.PutBytes({outgoing.entry->tensors[0].input + outgoing.sent, count});
      if (!SendTo(outgoing.entry->message.peer, writer).ok()) return moved;
      outgoing.sent += count;
      outgoing.whole = outgoing.sent == bytes;
    }
    if (!outgoing.whole) {
      ++next;
      continue;
    }
    // The links have a copy of the whole message.
    std::shared_ptr<MessageEntry> entry = std::move(outgoing.entry);
    next = outgoing_.erase(next);
    Finish(std::move(entry), {});
    moved = true;
  }
  return moved;
}

bool LinkedMessages::Gives() const {
  return std::ranges::any_of(
      outgoing_, [](const auto& item) { return item.second.wanted > 0 || item.second.sent > 0; });
}

bool LinkedMessages::EndWhatCannotCome() {
  std::vector<std::pair<std::shared_ptr<MessageEntry>, Error>> ended;
  const auto look = [&](const std::shared_ptr<MessageEntry>& entry) {
    if (std::optional<Error> why = surroundings_.ended(*entry))
      ended.emplace_back(entry, std::move(*why));
  };
  for (const auto& entry : receives_) look(entry);
  for (const auto& [number, outgoing] : outgoing_) look(outgoing.entry);
  for (const auto& [name, incoming] : incoming_) look(incoming.entry);
  for (const auto& [entry, error] : ended) Cancel(*entry, error);
  return !ended.empty();
}

bool LinkedMessages::EndOverdue() {
  const int64_t now = NowNs();
  std::vector<std::shared_ptr<MessageEntry>> overdue;
  const auto look = [&](const std::shared_ptr<MessageEntry>& entry) {
    if (entry->deadline_ns <= now) overdue.push_back(entry);
  };
  for (const auto& entry : receives_) look(entry);
  for (const auto& [number, outgoing] : outgoing_) look(outgoing.entry);
  for (const auto& [name, incoming] : incoming_) look(incoming.entry);
  for (const auto& entry : overdue) Cancel(*entry, surroundings_.overdue(*entry));
  return !overdue.empty();
}

void LinkedMessages::Cancel(MessageEntry& entry, const Error& error) {
  TakeFresh();
  const auto same = [&](const auto& held) { return held.get() == &entry; };
  if (const auto receive = std::ranges::find_if(receives_, same); receive != receives_.end()) {
    std::shared_ptr<MessageEntry> held = std::move(*receive);
    receives_.erase(receive);
    return Finish(std::move(held), error);
  }
  for (auto incoming = incoming_.begin(); incoming != incoming_.end(); ++incoming) {
    if (!same(incoming->second.entry)) continue;
    std::shared_ptr<MessageEntry> held = std::move(incoming->second.entry);
    WireWriter writer = About(Kind::kRefused, incoming->first.second);
    writer.Put(kGaveUp);
    (void)SendTo(incoming->first.first, writer);
    incoming_.erase(incoming);
    return Finish(std::move(held), error);
  }
  for (auto outgoing = outgoing_.begin(); outgoing != outgoing_.end(); ++outgoing) {
    if (!same(outgoing->second.entry)) continue;
    std::shared_ptr<MessageEntry> held = std::move(outgoing->second.entry);
    (void)SendTo(held->message.peer, About(Kind::kWithdrawn, outgoing->first));
    outgoing_.erase(outgoing);
    return Finish(std::move(held), error);
  }
}

void LinkedMessages::FailAll(const Error& error) {
  TakeFresh();
  std::vector<std::shared_ptr<MessageEntry>> doomed(receives_.begin(), receives_.end());
  for (const auto& [name, incoming] : incoming_) doomed.push_back(incoming.entry);
  for (const auto& [number, outgoing] : outgoing_) doomed.push_back(outgoing.entry);
  receives_.clear();
  incoming_.clear();
  outgoing_.clear();
  offers_.clear();
  for (auto& entry : doomed) Finish(std::move(entry), error);
}

}  // namespace horoacc
