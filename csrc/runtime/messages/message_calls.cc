#include "runtime/messages/message_calls.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "negotiate/decider.h"

namespace horoacc {
namespace {

std::string NameOfMessage(const Message& message) {
  const std::string peer = message.peer == kAnySource ? "any" : std::to_string(message.peer);
  return (message.sends ? "send.to." : "recv.from.") + peer + ".tag." + std::to_string(message.tag);
}

}  // namespace

MessageCalls::MessageCalls(Job& job, Failure& failure, SetTable& sets, Handles& handles,
                           Completion& completion, Deadlines& deadlines)
    : job_(job), failure_(failure), sets_(sets), handles_(handles) {
  MessageSurroundings surroundings;
  surroundings.complete = [&job, &completion](MessageEntry& entry, Status outcome) {
    if (entry.linked) job.linked_messages.fetch_sub(1, std::memory_order_relaxed);
    completion.Complete(entry, std::move(outcome));
  };
  surroundings.ended = [this](const MessageEntry& entry) { return WhyEnded(entry); };
  surroundings.overdue = [this, &deadlines](MessageEntry& entry) {
    if (const auto set = sets_.Find(entry.process_set)) {
      (void)set->controller->End(SetEnd::GaveUp(job_.rank()));
      set->context.ring_others(true);
    }
    return deadlines.TooLate(entry, entry.limit_seconds);
  };
  std::function<bool(int)> has_left;
  if (job.multi_host_parts)
    has_left = [&job](int rank) { return job.multi_host->channel().HasLeft(rank); };
  exchange_.emplace(ShmMessages::Host{job.control, job.share, job.doorbells, *job.arena,
                                      [&job](void* block) { job.blocks.Free(block); }},
                    std::move(has_left), std::move(surroundings));
}

bool MessageCalls::IsLinked(const ProcessSet& set, int peer) const {
  return set.multi_host && (peer == kAnySource || job_.LocalOf(peer) == job_.share.ranks.size());
}

Result<uint64_t> MessageCalls::Submit(uint32_t process_set, const Message& message,
                                      Submission::Buffers buffers, double limit_seconds,
                                      std::function<void()> done) {
  if (job_.stopping.load(std::memory_order_acquire))
    return MakeError(ErrorKind::kAborted, "the engine has been shut down");
  const std::shared_ptr<ProcessSet> set = sets_.Find(process_set);
  if (!set)
    return MakeError(ErrorKind::kInvalid, "unknown process set " + std::to_string(process_set));
  if (!set->Has(job_.rank())) {
    return MakeError(ErrorKind::kInvalid, "rank " + std::to_string(job_.rank()) +
                                              " is not in process set " + std::to_string(set->id));
  }
  if (!set->Has(message.peer) && (message.sends || message.peer != kAnySource))
    return MakeError(ErrorKind::kInvalid, "the other rank of a message is not in the process set");
  const void* memory = message.sends ? buffers.input : buffers.output;
  if (!memory && message.bytes > 0)
    return MakeError(ErrorKind::kInvalid, "no memory was given for a message");

  auto entry = std::make_shared<MessageEntry>(message);
  entry->process_set = process_set;
  entry->display_name = NameOfMessage(message);
  const bool has_callback = done != nullptr;
  entry->done = std::move(done);
  entry->submitted_ns = NowNs();
  if (limit_seconds > 0) {
    entry->limit_seconds = limit_seconds;
    entry->deadline_ns = entry->submitted_ns + FromSeconds(limit_seconds);
  }
  (void)entry->tensors.emplace_back();
  entry->tensors[0].input = static_cast<const std::byte*>(buffers.input);
  entry->tensors[0].output = static_cast<std::byte*>(buffers.output);
  const uint64_t handle = handles_.Add(entry);
  entry->flight = job_.events.Emit(Phase::kQueued, process_set, handle, 0, message.bytes,
                                   entry->display_name, message.sends ? "send" : "recv");
  entry->linked = IsLinked(*set, message.peer);
  if (entry->linked) job_.linked_messages.fetch_add(1, std::memory_order_relaxed);
  // At an abort the driver ends all known messages; a later submission must see the failure.
  Status begun = failure_.UnlessFailed([&]() -> Status {
    if (message.sends) return exchange_->Send(entry);
    exchange_->Receive(entry);
    return {};
  });
  if (!begun.ok()) {
    if (entry->linked) job_.linked_messages.fetch_sub(1, std::memory_order_relaxed);
    handles_.Remove(handle);
    return failure_.Annotate(std::move(begun.error()), nullptr, entry.get());
  }
  if (entry->linked) job_.RingOwn(Urgency::kQuiet);  // a caller that drives is to look at links
  // Maybe no thread ever waits for a call with a callback, so the coordinator must drive.
  if (has_callback || (entry->linked && job_.must_poll)) job_.WakeCoordinator();
  return handle;
}

bool MessageCalls::HasLeft(const ProcessSet& set, int rank) const {
  // A rank says that it leaves when other hosts have heard of its messages: LeaveJob, LeaveGroup.
  if (set.multi_host)
    return job_.multi_host->channel().HasLeft(rank) ||
           job_.multi_host->channel().HasLeftGroup(set.id, rank);
  if (set.control->header().end.load(std::memory_order_acquire) == SetEnd::Left(rank)) return true;
  const auto index = std::ranges::find(set.ranks, rank) - set.ranks.begin();
  const Cursor& cursor = set.control->cursor(static_cast<uint32_t>(index));
  return cursor.left.load(std::memory_order_acquire) != 0 || job_.HasLeft(job_.LocalOf(rank));
}

std::optional<Error> MessageCalls::WhyEnded(const MessageEntry& entry) const {
  const std::shared_ptr<ProcessSet> set = sets_.Find(entry.process_set);
  if (!set) return MakeError(ErrorKind::kAborted, "this rank has left the group");
  const SetEnd end = set->control->header().end.load(std::memory_order_acquire);
  if (end.removed() || end.gave_up()) return EndOfSet(end);
  const int peer = entry.message.peer;
  if (peer != kAnySource)
    return HasLeft(*set, peer) ? std::optional(EndOfSet(SetEnd::Left(peer))) : std::nullopt;
  const auto here = [&](int rank) { return rank == job_.rank() || HasLeft(*set, rank); };
  if (set->ranks.size() < 2 || !std::ranges::all_of(set->ranks, here)) return std::nullopt;
  return MakeError(ErrorKind::kAborted, "all other ranks of the group have shut down");
}

}  // namespace horoacc
