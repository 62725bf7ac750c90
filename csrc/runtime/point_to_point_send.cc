// The sender's side of messages.
#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "runtime/point_to_point.h"

namespace horoacc {

Status PointToPoint::Send(std::shared_ptr<Entry> entry) {
  const EntryTensor& tensor = entry->tensors[0];
  const uint64_t bytes = entry->message->bytes;
  const bool small = bytes <= kSmallParcel;
  void* const memory = arena_.Allocate(sizeof(Parcel) + (small ? bytes : 0));
  if (!memory)
    return MakeError(ErrorKind::kSystem, "shared memory is exhausted: no room for a message");
  auto* const parcel = new (memory) Parcel;
  parcel->process_set = entry->process_set;
  parcel->tag = entry->message->tag;
  parcel->from = share_.ranks[share_.local_rank];
  parcel->bytes = bytes;
  if (small) {
    if (bytes > 0)
      std::memcpy(static_cast<std::byte*>(memory) + sizeof(Parcel), tensor.input, bytes);
    parcel->data = arena_.OffsetOf(parcel + 1);
  } else {
    parcel->data = arena_.Contains(tensor.input) ? arena_.OffsetOf(tensor.input) : kPrivate;
  }
  pending_.fetch_add(1, std::memory_order_relaxed);
  {
    std::lock_guard lock(fresh_mutex_);
    fresh_sends_.push_back({parcel, small ? nullptr : entry});
    fresh_.store(true, std::memory_order_release);
  }
  // Before the parcel is out: its receiver may be through with it in the next moment.
  if (small) Finish(entry, {});
  const uint32_t to = LocalRank(entry->message->peer);
  std::atomic<uint64_t>& mail = board_.state(to).mail;
  const uint64_t word =
      ParcelPlace{static_cast<uint32_t>(share_.local_rank), arena_.OffsetOf(parcel)}.word();
  uint64_t head = mail.load(std::memory_order_relaxed);
  do {
    parcel->next.store(head, std::memory_order_relaxed);
  } while (!mail.compare_exchange_weak(head, word, std::memory_order_release,
                                       std::memory_order_relaxed));
  bells_.Ring(static_cast<int>(to), Urgency::kWork);
  return {};
}

bool PointToPoint::AdvanceOutgoing() {
  bool moved = false;
  for (auto outgoing = outgoing_.begin(); outgoing != outgoing_.end();) {
    Parcel& parcel = *outgoing->parcel;
    const ParcelState state = parcel.state.load(std::memory_order_acquire);
    if (state == ParcelState::kClaimed) moved |= Show(*outgoing);
    if (state != ParcelState::kDone && state != ParcelState::kRefused) {
      ++outgoing;
      continue;
    }
    Outgoing over = std::move(*outgoing);
    outgoing = outgoing_.erase(outgoing);
    Status outcome;
    if (over.entry && state == ParcelState::kRefused) {
      outcome = Refused(parcel, over.entry->message->peer);
    }
    if (over.ring) surroundings_.free(over.ring);
    surroundings_.free(over.parcel);
    if (over.entry) Finish(std::move(over.entry), std::move(outcome));
    moved = true;
  }
  return moved;
}

// Copies the next window in, once its place is free.
bool PointToPoint::Show(Outgoing& outgoing) {
  Parcel& parcel = *outgoing.parcel;
  if (parcel.data != kPrivate || !outgoing.entry) return false;
  const uint64_t windows = (parcel.bytes + kParcelWindow - 1) / kParcelWindow;
  if (outgoing.shown == windows ||
      outgoing.shown >= parcel.taken.load(std::memory_order_acquire) + kParcelWindows) {
    return false;
  }
  if (!outgoing.ring) {
    outgoing.ring =
        static_cast<std::byte*>(arena_.Allocate(kParcelWindow * std::min(kParcelWindows, windows)));
    if (!outgoing.ring) return false;  // other messages will give theirs back
    parcel.windows.store(arena_.OffsetOf(outgoing.ring), std::memory_order_relaxed);
  }
  const uint64_t first = outgoing.shown * kParcelWindow;
  std::memcpy(outgoing.ring + outgoing.shown % kParcelWindows * kParcelWindow,
              outgoing.entry->tensors[0].input + first,
              std::min(kParcelWindow, parcel.bytes - first));
  parcel.shown.store(++outgoing.shown, std::memory_order_release);
  bells_.Ring(static_cast<int>(LocalRank(outgoing.entry->message->peer)), Urgency::kWork);
  return true;
}

bool PointToPoint::Gives() const {
  return std::ranges::any_of(outgoing_, [](const Outgoing& outgoing) {
    return outgoing.parcel->state.load(std::memory_order_acquire) == ParcelState::kClaimed;
  });
}

Error PointToPoint::Refused(const Parcel& parcel, int to) {
  const uint64_t room = parcel.reply.load(std::memory_order_relaxed);
  if (room != kGaveUpReceiving) return SizesDiffer(parcel.from, parcel.bytes, to, room);
  return MakeError(ErrorKind::kAborted, "rank " + std::to_string(to) + " gave up receiving", to);
}

}  // namespace horoacc
