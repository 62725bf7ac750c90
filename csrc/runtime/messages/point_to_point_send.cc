// The sender's side of messages.
#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "runtime/messages/point_to_point.h"

namespace horoacc {

Status PointToPoint::Send(std::shared_ptr<Entry> entry) {
  const EntryTensor& tensor = entry->tensors[0];
  const uint64_t bytes = entry->message->bytes;
  const bool small = bytes <= kSmallMessageBytes;
  void* const memory = arena_.Allocate(sizeof(MessageDescriptor) + (small ? bytes : 0));
  if (!memory)
    return MakeError(ErrorKind::kSystem, "shared memory is exhausted: no room for a message");
  auto* const descriptor = new (memory) MessageDescriptor;
  descriptor->process_set = entry->process_set;
  descriptor->tag = entry->message->tag;
  descriptor->from = share_.ranks[share_.local_rank];
  descriptor->bytes = bytes;
  if (small) {
    if (bytes > 0)
      std::memcpy(static_cast<std::byte*>(memory) + sizeof(MessageDescriptor), tensor.input, bytes);
    descriptor->data = arena_.OffsetOf(descriptor + 1);
  } else {
    descriptor->data = arena_.Contains(tensor.input) ? arena_.OffsetOf(tensor.input) : kPrivate;
  }
  pending_.fetch_add(1, std::memory_order_relaxed);
  {
    std::lock_guard lock(fresh_mutex_);
    fresh_sends_.push_back({descriptor, small ? nullptr : entry});
    fresh_.store(true, std::memory_order_release);
  }
  // Before the message descriptor is out: its receiver may be through with it in the next moment.
  if (small) Finish(entry, {});
  const uint32_t to = LocalRank(entry->message->peer);
  std::atomic<uint64_t>& mail = control_.state(to).mail;
  const uint64_t word =
      DescriptorPlace{static_cast<uint32_t>(share_.local_rank), arena_.OffsetOf(descriptor)}.word();
  uint64_t head = mail.load(std::memory_order_relaxed);
  do {
    descriptor->next.store(head, std::memory_order_relaxed);
  } while (!mail.compare_exchange_weak(head, word, std::memory_order_release,
                                       std::memory_order_relaxed));
  doorbells_.Ring(static_cast<int>(to), Urgency::kWork);
  return {};
}

bool PointToPoint::AdvanceOutgoing() {
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
      outcome = Refused(descriptor, over.entry->message->peer);
    }
    if (over.ring) surroundings_.free(over.ring);
    surroundings_.free(over.descriptor);
    if (over.entry) Finish(std::move(over.entry), std::move(outcome));
    moved = true;
  }
  return moved;
}

// Copies the next window in, once its place is free.
bool PointToPoint::Show(Outgoing& outgoing) {
  MessageDescriptor& descriptor = *outgoing.descriptor;
  if (descriptor.data != kPrivate || !outgoing.entry) return false;
  const uint64_t windows = (descriptor.bytes + kMessageWindow - 1) / kMessageWindow;
  if (outgoing.shown == windows ||
      outgoing.shown >= descriptor.taken.load(std::memory_order_acquire) + kMessageWindows) {
    return false;
  }
  if (!outgoing.ring) {
    outgoing.ring = static_cast<std::byte*>(
        arena_.Allocate(kMessageWindow * std::min(kMessageWindows, windows)));
    if (!outgoing.ring) return false;  // other messages will give theirs back
    descriptor.windows.store(arena_.OffsetOf(outgoing.ring), std::memory_order_relaxed);
  }
  const uint64_t first = outgoing.shown * kMessageWindow;
  std::memcpy(outgoing.ring + outgoing.shown % kMessageWindows * kMessageWindow,
              outgoing.entry->tensors[0].input + first,
              std::min(kMessageWindow, descriptor.bytes - first));
  descriptor.shown.store(++outgoing.shown, std::memory_order_release);
  doorbells_.Ring(static_cast<int>(LocalRank(outgoing.entry->message->peer)), Urgency::kWork);
  return true;
}

bool PointToPoint::Gives() const {
  return std::ranges::any_of(outgoing_, [](const Outgoing& outgoing) {
    return outgoing.descriptor->state.load(std::memory_order_acquire) == MessageState::kClaimed;
  });
}

Error PointToPoint::Refused(const MessageDescriptor& descriptor, int to) {
  const uint64_t room = descriptor.reply.load(std::memory_order_relaxed);
  if (room != kGaveUpReceiving) return SizesDiffer(descriptor.from, descriptor.bytes, to, room);
  return MakeError(ErrorKind::kAborted, "rank " + std::to_string(to) + " gave up receiving", to);
}

}  // namespace horoacc
