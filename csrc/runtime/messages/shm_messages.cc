#include "runtime/messages/shm_messages.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace horoacc {
namespace {

constexpr uint64_t kCopyAtOnce = 1 << 20;  // bytes a turn, so that other calls of this rank go on

}  // namespace

uint32_t ShmMessages::LocalRank(int rank) const {
  return static_cast<uint32_t>(std::ranges::find(host_.share.ranks, rank) -
                               host_.share.ranks.begin());
}

bool ShmMessages::Progress() {
  bool moved = TakeMail();
  moved |= AdvanceIncoming();
  moved |= AdvanceOutgoing();
  return moved;
}

void ShmMessages::Visit(const Visitor& visit) const {
  for (const Outgoing& outgoing : outgoing_) {
    if (outgoing.entry) visit(outgoing.entry, true);
  }
  for (const Incoming& incoming : incoming_)
    visit(incoming.entry, incoming.descriptor->data == kPrivate);
}

void ShmMessages::TakeFresh() {
  if (!fresh_.load(std::memory_order_acquire)) return;
  std::lock_guard lock(fresh_mutex_);
  for (Outgoing& outgoing : fresh_sends_) outgoing_.push_back(std::move(outgoing));
  fresh_sends_.clear();
  fresh_.store(false, std::memory_order_relaxed);
}

MessageDescriptor* ShmMessages::At(const DescriptorPlace& place) const {
  return reinterpret_cast<MessageDescriptor*>(host_.share.memory[place.local_rank].data() +
                                              place.offset);
}

bool ShmMessages::TakeMail() {
  std::atomic<uint64_t>& mail = host_.control.state(host_.share.local_rank).mail;
  if (mail.load(std::memory_order_relaxed) == 0) return false;
  std::vector<uint64_t> news;  // the last one first
  for (uint64_t word = mail.exchange(0, std::memory_order_acquire); word != 0;) {
    news.push_back(word);
    word = At(DescriptorPlace::From(word))->next.load(std::memory_order_relaxed);
  }
  for (auto word = news.rbegin(); word != news.rend(); ++word) {
    const MessageDescriptor& descriptor = *At(DescriptorPlace::From(*word));
    Offer offer;
    offer.way = this;
    offer.name = *word;
    offer.process_set = descriptor.process_set;
    offer.tag = descriptor.tag;
    offer.from = descriptor.from;
    offer.bytes = descriptor.bytes;
    events_.offered(std::move(offer));
  }
  return true;
}

bool ShmMessages::Take(Offer& offer, const std::shared_ptr<MessageEntry>& entry) {
  const DescriptorPlace place = DescriptorPlace::From(offer.name);
  MessageDescriptor& descriptor = *At(place);
  MessageState open = MessageState::kOpen;
  if (!descriptor.state.compare_exchange_strong(open, MessageState::kClaimed,
                                                std::memory_order_acq_rel)) {
    descriptor.state.store(MessageState::kDone, std::memory_order_release);
    return false;
  }
  entry->message.source = offer.from;
  const int from = static_cast<int>(place.local_rank);
  if (offer.bytes != entry->message.bytes) {
    const int me = host_.share.ranks[host_.share.local_rank];
    descriptor.reply.store(entry->message.bytes, std::memory_order_relaxed);
    descriptor.state.store(MessageState::kRefused, std::memory_order_release);
    host_.doorbells.Ring(from, Urgency::kWork);
    events_.finish(entry, SizesDiffer(offer.from, offer.bytes, me, entry->message.bytes));
    return true;
  }
  if (descriptor.data == kPrivate) host_.doorbells.Ring(from, Urgency::kWork);  // asks for windows
  const std::byte* const memory = host_.share.memory[place.local_rank].data();
  incoming_.push_back({&descriptor, entry, memory, place.local_rank});
  return true;
}

bool ShmMessages::AdvanceIncoming() {
  bool moved = false;
  for (auto incoming = incoming_.begin(); incoming != incoming_.end();) {
    moved |= Copy(*incoming);
    MessageDescriptor& descriptor = *incoming->descriptor;
    if (incoming->copied < descriptor.bytes) {
      ++incoming;
      continue;
    }
    const bool sender_waits = descriptor.bytes > kSmallMessageBytes;
    std::shared_ptr<MessageEntry> entry = std::move(incoming->entry);
    const int from = static_cast<int>(incoming->from_local);
    incoming = incoming_.erase(incoming);
    descriptor.state.store(MessageState::kDone, std::memory_order_release);
    if (sender_waits) host_.doorbells.Ring(from, Urgency::kWork);
    events_.finish(std::move(entry), {});
    moved = true;
  }
  return moved;
}

bool ShmMessages::Copy(Incoming& incoming) {
  MessageDescriptor& descriptor = *incoming.descriptor;
  std::byte* const to = incoming.entry->tensors[0].output;
  if (descriptor.data != kPrivate) {
    const uint64_t bytes = std::min(kCopyAtOnce, descriptor.bytes - incoming.copied);
    if (bytes == 0) return false;
    std::memcpy(to + incoming.copied, incoming.memory + descriptor.data + incoming.copied, bytes);
    incoming.copied += bytes;
    return true;
  }
  const uint64_t window = descriptor.taken.load(std::memory_order_relaxed);
  if (window >= descriptor.shown.load(std::memory_order_acquire)) return false;
  const uint64_t bytes = std::min(kMessageWindow, descriptor.bytes - incoming.copied);
  const std::byte* from = incoming.memory + descriptor.windows.load(std::memory_order_relaxed) +
                          window % kMessageWindows * kMessageWindow;
  std::memcpy(to + incoming.copied, from, bytes);
  incoming.copied += bytes;
  descriptor.taken.store(window + 1, std::memory_order_release);
  host_.doorbells.Ring(static_cast<int>(incoming.from_local), Urgency::kWork);
  return true;
}

bool ShmMessages::Cancel(const MessageEntry& entry, const Error& error) {
  const auto same = [&](const auto& held) { return held.get() == &entry; };
  if (const auto incoming = std::ranges::find_if(incoming_, same, &Incoming::entry);
      incoming != incoming_.end()) {
    std::shared_ptr<MessageEntry> held = std::move(incoming->entry);
    MessageDescriptor& descriptor = *incoming->descriptor;
    const int from = static_cast<int>(incoming->from_local);
    incoming_.erase(incoming);
    descriptor.reply.store(kGaveUpReceiving, std::memory_order_relaxed);
    descriptor.state.store(MessageState::kRefused, std::memory_order_release);
    host_.doorbells.Ring(from, Urgency::kWork);
    events_.finish(std::move(held), error);
    return true;
  }
  const auto outgoing = std::ranges::find_if(outgoing_, same, &Outgoing::entry);
  if (outgoing == outgoing_.end()) return false;
  // A receiver in the middle of the message reads on; AdvanceOutgoing frees the memory afterwards.
  MessageState open = MessageState::kOpen;
  const bool withdrawn = outgoing->descriptor->state.compare_exchange_strong(
      open, MessageState::kWithdrawn, std::memory_order_acq_rel);
  if (withdrawn || outgoing->descriptor->data == kPrivate)
    events_.finish(std::exchange(outgoing->entry, nullptr), error);
  return true;
}

std::vector<std::shared_ptr<MessageEntry>> ShmMessages::Drop() {
  std::vector<std::shared_ptr<MessageEntry>> calls;
  Visit([&](const std::shared_ptr<MessageEntry>& entry, bool) { calls.push_back(entry); });
  // Blocks in shared memory are not freed: a peer may still read them.
  incoming_.clear();
  outgoing_.clear();
  return calls;
}

Status ShmMessages::Send(std::shared_ptr<MessageEntry> entry) {
  const EntryTensor& tensor = entry->tensors[0];
  const uint64_t bytes = entry->message.bytes;
  const bool small = bytes <= kSmallMessageBytes;
  void* const memory = host_.arena.Allocate(sizeof(MessageDescriptor) + (small ? bytes : 0));
  if (!memory)
    return MakeError(ErrorKind::kSystem, "shared memory is exhausted: no room for a message");
  auto* const descriptor = new (memory) MessageDescriptor;
  descriptor->process_set = entry->process_set;
  descriptor->tag = entry->message.tag;
  descriptor->from = host_.share.ranks[host_.share.local_rank];
  descriptor->bytes = bytes;
  if (small) {
    if (bytes > 0)
      std::memcpy(static_cast<std::byte*>(memory) + sizeof(MessageDescriptor), tensor.input, bytes);
    descriptor->data = host_.arena.OffsetOf(descriptor + 1);
  } else {
    descriptor->data =
        host_.arena.Contains(tensor.input) ? host_.arena.OffsetOf(tensor.input) : kPrivate;
  }
  {
    std::lock_guard lock(fresh_mutex_);
    fresh_sends_.push_back({descriptor, small ? nullptr : entry});
    fresh_.store(true, std::memory_order_release);
  }
  // Before the message descriptor is posted: the receiver may be done with it at once afterwards.
  if (small) events_.finish(entry, {});
  const uint32_t to = LocalRank(entry->message.peer);
  std::atomic<uint64_t>& mail = host_.control.state(to).mail;
  const uint64_t word = DescriptorPlace{static_cast<uint32_t>(host_.share.local_rank),
                                        host_.arena.OffsetOf(descriptor)}
                            .word();
  uint64_t head = mail.load(std::memory_order_relaxed);
  do {
    descriptor->next.store(head, std::memory_order_relaxed);
  } while (!mail.compare_exchange_weak(head, word, std::memory_order_release,
                                       std::memory_order_relaxed));
  host_.doorbells.Ring(static_cast<int>(to), Urgency::kWork);
  return {};
}

bool ShmMessages::AdvanceOutgoing() {
  bool moved = false;
  for (auto outgoing = outgoing_.begin(); outgoing != outgoing_.end();) {
    MessageDescriptor& descriptor = *outgoing->descriptor;
    const MessageState state = descriptor.state.load(std::memory_order_acquire);
    if (state == MessageState::kClaimed) moved |= Show(*outgoing);
    if (state != MessageState::kDone && state != MessageState::kRefused) {
      ++outgoing;
      continue;
    }
    Outgoing over = std::move(*outgoing);
    outgoing = outgoing_.erase(outgoing);
    Status outcome;
    if (over.entry && state == MessageState::kRefused) {
      outcome = Refused(descriptor, over.entry->message.peer);
    }
    if (over.ring) host_.free(over.ring);
    host_.free(over.descriptor);
    if (over.entry) events_.finish(std::move(over.entry), std::move(outcome));
    moved = true;
  }
  return moved;
}

// Copies the next window into the ring, once its slot is free.
bool ShmMessages::Show(Outgoing& outgoing) {
  MessageDescriptor& descriptor = *outgoing.descriptor;
  if (descriptor.data != kPrivate || !outgoing.entry) return false;
  const uint64_t windows = (descriptor.bytes + kMessageWindow - 1) / kMessageWindow;
  if (outgoing.shown == windows ||
      outgoing.shown >= descriptor.taken.load(std::memory_order_acquire) + kMessageWindows) {
    return false;
  }
  if (!outgoing.ring) {
    outgoing.ring = static_cast<std::byte*>(
        host_.arena.Allocate(kMessageWindow * std::min(kMessageWindows, windows)));
    if (!outgoing.ring) return false;  // other messages will free their rings
    descriptor.windows.store(host_.arena.OffsetOf(outgoing.ring), std::memory_order_relaxed);
  }
  const uint64_t first = outgoing.shown * kMessageWindow;
  std::memcpy(outgoing.ring + outgoing.shown % kMessageWindows * kMessageWindow,
              outgoing.entry->tensors[0].input + first,
              std::min(kMessageWindow, descriptor.bytes - first));
  descriptor.shown.store(++outgoing.shown, std::memory_order_release);
  host_.doorbells.Ring(static_cast<int>(LocalRank(outgoing.entry->message.peer)), Urgency::kWork);
  return true;
}

bool ShmMessages::Gives() const {
  return std::ranges::any_of(outgoing_, [](const Outgoing& outgoing) {
    return outgoing.descriptor->state.load(std::memory_order_acquire) == MessageState::kClaimed;
  });
}

Error ShmMessages::Refused(const MessageDescriptor& descriptor, int to) {
  const uint64_t room = descriptor.reply.load(std::memory_order_relaxed);
  if (room != kGaveUpReceiving) return SizesDiffer(descriptor.from, descriptor.bytes, to, room);
  return MakeError(ErrorKind::kAborted, "rank " + std::to_string(to) + " gave up receiving", to);
}

}  // namespace horoacc
