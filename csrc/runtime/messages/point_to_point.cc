#include "runtime/messages/point_to_point.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/clock.h"

namespace horoacc {
namespace {

constexpr uint64_t kCopyAtOnce = 1 << 20;  // bytes a turn, so that other calls of this rank go on

}  // namespace

PointToPoint::PointToPoint(const ControlSegment& control, const HostShare& share,
                           const Doorbells& doorbells, Arena& arena,
                           MessageSurroundings surroundings)
    : control_(control),
      share_(share),
      doorbells_(doorbells),
      arena_(arena),
      surroundings_(std::move(surroundings)) {}

uint32_t PointToPoint::LocalRank(int rank) const {
  return static_cast<uint32_t>(std::ranges::find(share_.ranks, rank) - share_.ranks.begin());
}

// By value: the caller's pointer may lie in a container that the completion changes.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
void PointToPoint::Finish(std::shared_ptr<MessageEntry> entry, Status outcome) {
  pending_.fetch_sub(1, std::memory_order_relaxed);
  surroundings_.complete(*entry, std::move(outcome));
}

void PointToPoint::Receive(std::shared_ptr<MessageEntry> entry) {
  pending_.fetch_add(1, std::memory_order_relaxed);
  std::lock_guard lock(fresh_mutex_);
  fresh_receives_.push_back(std::move(entry));
  fresh_.store(true, std::memory_order_release);
}

bool PointToPoint::Fits(const MessageEntry& receive, const MessageDescriptor& descriptor) {
  return receive.process_set == descriptor.process_set && receive.message.tag == descriptor.tag &&
         (receive.message.peer == kAnySource || receive.message.peer == descriptor.from);
}

bool PointToPoint::Progress() {
  TakeFresh();
  // Before the mail is taken, so that messages are received that a peer posted before it left.
  std::vector<std::pair<MessageEntry*, Error>> ended;
  const auto look = [&](const std::shared_ptr<MessageEntry>& entry) {
    if (!entry) return;
    if (std::optional<Error> why = surroundings_.ended(*entry))
      ended.emplace_back(entry.get(), std::move(*why));
  };
  for (const auto& entry : receives_) look(entry);
  for (const Outgoing& outgoing : outgoing_) look(outgoing.entry);
  for (const Incoming& incoming : incoming_) {
    if (incoming.descriptor->data == kPrivate) look(incoming.entry);
  }
  bool moved = TakeMail();
  moved |= AdvanceIncoming();
  moved |= AdvanceOutgoing();
  if (!ended.empty()) moved |= EndWhatCannotCome(ended);
  moved |= EndOverdue();
  return moved;
}

void PointToPoint::TakeFresh() {
  if (!fresh_.load(std::memory_order_acquire)) return;
  std::vector<std::shared_ptr<MessageEntry>> receives;
  {
    std::lock_guard lock(fresh_mutex_);
    receives.swap(fresh_receives_);
    for (Outgoing& outgoing : fresh_sends_) {
      if (outgoing.entry)
        next_deadline_ns_ = std::min(next_deadline_ns_, outgoing.entry->deadline_ns);
      outgoing_.push_back(std::move(outgoing));
    }
    fresh_sends_.clear();
    fresh_.store(false, std::memory_order_relaxed);
  }
  for (auto& entry : receives) {
    next_deadline_ns_ = std::min(next_deadline_ns_, entry->deadline_ns);
    bool begun = false;
    for (auto arrived = arrived_.begin(); !begun && arrived != arrived_.end();) {
      if (!Fits(*entry, *arrived->descriptor)) {
        ++arrived;
        continue;
      }
      begun = Begin(*arrived, entry);
      arrived = arrived_.erase(arrived);
    }
    if (!begun) receives_.push_back(std::move(entry));
  }
}

bool PointToPoint::TakeMail() {
  std::atomic<uint64_t>& mail = control_.state(share_.local_rank).mail;
  if (mail.load(std::memory_order_relaxed) == 0) return false;
  uint64_t word = mail.exchange(0, std::memory_order_acquire);
  std::vector<Arrived> news;
  while (word != 0) {
    const DescriptorPlace place = DescriptorPlace::From(word);
    auto* const descriptor =
        reinterpret_cast<MessageDescriptor*>(share_.memory[place.local_rank].data() + place.offset);
    news.push_back({descriptor, place.local_rank});
    word = descriptor->next.load(std::memory_order_relaxed);
  }
  for (auto one = news.rbegin(); one != news.rend(); ++one) {
    const auto match = std::ranges::find_if(
        receives_, [&](const auto& receive) { return Fits(*receive, *one->descriptor); });
    if (match == receives_.end()) {
      arrived_.push_back(*one);
      continue;
    }
    if (Begin(*one, *match)) receives_.erase(match);
  }
  return true;
}

bool PointToPoint::Begin(const Arrived& arrived, const std::shared_ptr<MessageEntry>& entry) {
  MessageDescriptor& descriptor = *arrived.descriptor;
  MessageState open = MessageState::kOpen;
  if (!descriptor.state.compare_exchange_strong(open, MessageState::kClaimed,
                                                std::memory_order_acq_rel)) {
    descriptor.state.store(MessageState::kDone, std::memory_order_release);
    return false;
  }
  entry->message.source = descriptor.from;
  const int from = static_cast<int>(arrived.from_local);
  if (descriptor.bytes != entry->message.bytes) {
    const int me = share_.ranks[share_.local_rank];
    const Error differ = SizesDiffer(descriptor.from, descriptor.bytes, me, entry->message.bytes);
    descriptor.reply.store(entry->message.bytes, std::memory_order_relaxed);
    descriptor.state.store(MessageState::kRefused, std::memory_order_release);
    doorbells_.Ring(from, Urgency::kWork);
    Finish(entry, differ);
    return true;
  }
  if (descriptor.data == kPrivate) doorbells_.Ring(from, Urgency::kWork);  // asks for windows
  incoming_.push_back(
      {&descriptor, entry, share_.memory[arrived.from_local].data(), arrived.from_local});
  return true;
}

bool PointToPoint::AdvanceIncoming() {
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
    if (sender_waits) doorbells_.Ring(from, Urgency::kWork);
    Finish(std::move(entry), {});
    moved = true;
  }
  return moved;
}

bool PointToPoint::Copy(Incoming& incoming) {
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
  doorbells_.Ring(static_cast<int>(incoming.from_local), Urgency::kWork);
  return true;
}

bool PointToPoint::EndWhatCannotCome(const std::vector<std::pair<MessageEntry*, Error>>& ended) {
  bool moved = false;
  for (const auto& [entry, error] : ended) {
    if (entry->complete.load(std::memory_order_relaxed)) continue;
    const auto still = [entry = entry](const auto& held) { return held.get() == entry; };
    const bool here = std::ranges::any_of(receives_, still) ||
                      std::ranges::any_of(outgoing_, still, &Outgoing::entry) ||
                      std::ranges::any_of(incoming_, still, &Incoming::entry);
    if (!here) continue;
    Cancel(*entry, error);
    moved = true;
  }
  return moved;
}

bool PointToPoint::EndOverdue() {
  if (next_deadline_ns_ == std::numeric_limits<int64_t>::max()) return false;
  const int64_t now = NowNs();
  if (now < next_deadline_ns_) return false;
  next_deadline_ns_ = std::numeric_limits<int64_t>::max();
  std::vector<std::shared_ptr<MessageEntry>> overdue;
  const auto look = [&](const std::shared_ptr<MessageEntry>& entry) {
    if (!entry) return;
    if (entry->deadline_ns <= now) {
      overdue.push_back(entry);
    } else {
      next_deadline_ns_ = std::min(next_deadline_ns_, entry->deadline_ns);
    }
  };
  for (const auto& entry : receives_) look(entry);
  for (const Outgoing& outgoing : outgoing_) look(outgoing.entry);
  for (const Incoming& incoming : incoming_) look(incoming.entry);
  for (const auto& entry : overdue) Cancel(*entry, surroundings_.overdue(*entry));
  return !overdue.empty();
}

void PointToPoint::Cancel(MessageEntry& entry, const Error& error) {
  TakeFresh();
  const auto same = [&](const auto& held) { return held.get() == &entry; };
  if (const auto receive = std::ranges::find_if(receives_, same); receive != receives_.end()) {
    std::shared_ptr<MessageEntry> held = std::move(*receive);
    receives_.erase(receive);
    Finish(std::move(held), error);
    return;
  }
  if (const auto incoming = std::ranges::find_if(incoming_, same, &Incoming::entry);
      incoming != incoming_.end()) {
    std::shared_ptr<MessageEntry> held = std::move(incoming->entry);
    MessageDescriptor& descriptor = *incoming->descriptor;
    const int from = static_cast<int>(incoming->from_local);
    incoming_.erase(incoming);
    descriptor.reply.store(kGaveUpReceiving, std::memory_order_relaxed);
    descriptor.state.store(MessageState::kRefused, std::memory_order_release);
    doorbells_.Ring(from, Urgency::kWork);
    Finish(std::move(held), error);
    return;
  }
  const auto outgoing = std::ranges::find_if(outgoing_, same, &Outgoing::entry);
  if (outgoing == outgoing_.end()) return;
  // A receiver in the middle of the message reads on; AdvanceOutgoing frees the memory afterwards.
  MessageState open = MessageState::kOpen;
  const bool withdrawn = outgoing->descriptor->state.compare_exchange_strong(
      open, MessageState::kWithdrawn, std::memory_order_acq_rel);
  if (!withdrawn && outgoing->descriptor->data != kPrivate) return;
  Finish(std::exchange(outgoing->entry, nullptr), error);
}

void PointToPoint::FailAll(const Error& error) {
  TakeFresh();
  std::vector<std::shared_ptr<MessageEntry>> doomed(receives_.begin(), receives_.end());
  for (const Incoming& incoming : incoming_) doomed.push_back(incoming.entry);
  for (const Outgoing& outgoing : outgoing_) {
    if (outgoing.entry) doomed.push_back(outgoing.entry);
  }
  // Blocks in shared memory are not freed: a peer may still read them.
  receives_.clear();
  incoming_.clear();
  outgoing_.clear();
  arrived_.clear();
  for (auto& entry : doomed) Finish(std::move(entry), error);
}

Status PointToPoint::Send(std::shared_ptr<MessageEntry> entry) {
  const EntryTensor& tensor = entry->tensors[0];
  const uint64_t bytes = entry->message.bytes;
  const bool small = bytes <= kSmallMessageBytes;
  void* const memory = arena_.Allocate(sizeof(MessageDescriptor) + (small ? bytes : 0));
  if (!memory)
    return MakeError(ErrorKind::kSystem, "shared memory is exhausted: no room for a message");
  auto* const descriptor = new (memory) MessageDescriptor;
  descriptor->process_set = entry->process_set;
  descriptor->tag = entry->message.tag;
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
  // Before the message descriptor is posted: the receiver may be done with it at once afterwards.
  if (small) Finish(entry, {});
  const uint32_t to = LocalRank(entry->message.peer);
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
      outcome = Refused(descriptor, over.entry->message.peer);
    }
    if (over.ring) surroundings_.free(over.ring);
    surroundings_.free(over.descriptor);
    if (over.entry) Finish(std::move(over.entry), std::move(outcome));
    moved = true;
  }
  return moved;
}

// Copies the next window into the ring, once its slot is free.
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
    if (!outgoing.ring) return false;  // other messages will free their rings
    descriptor.windows.store(arena_.OffsetOf(outgoing.ring), std::memory_order_relaxed);
  }
  const uint64_t first = outgoing.shown * kMessageWindow;
  std::memcpy(outgoing.ring + outgoing.shown % kMessageWindows * kMessageWindow,
              outgoing.entry->tensors[0].input + first,
              std::min(kMessageWindow, descriptor.bytes - first));
  descriptor.shown.store(++outgoing.shown, std::memory_order_release);
  doorbells_.Ring(static_cast<int>(LocalRank(outgoing.entry->message.peer)), Urgency::kWork);
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
