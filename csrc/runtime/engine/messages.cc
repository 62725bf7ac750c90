// Point-to-point calls as the engine sees them.
#include <algorithm>

#include "base/clock.h"
#include "negotiate/decider.h"
#include "runtime/engine/engine.h"
#include "runtime/messages/linked_messages.h"
#include "runtime/messages/point_to_point.h"

namespace horoacc {
namespace {

std::string NameOfMessage(const Message& message) {
  const std::string peer = message.peer == kAnySource ? "any" : std::to_string(message.peer);
  return (message.sends ? "send.to." : "recv.from.") + peer + ".tag." + std::to_string(message.tag);
}

}  // namespace

std::unique_ptr<MessageExchange> Engine::MakeMessageExchange() {
  MessageSurroundings surroundings;
  surroundings.complete = [this](Entry& entry, Status outcome) {
    CompleteMessage(entry, std::move(outcome));
  };
  surroundings.ended = [this](const Entry& entry) { return WhyNoMessage(entry); };
  surroundings.overdue = [this](Entry& entry) {
    if (const auto set = FindSet(entry.process_set)) (void)EndSet(*set);
    return TooLate(entry, entry.limit_seconds);
  };
  surroundings.free = [this](void* block) { FreeShared(block); };
  if (multi_host_parts_) {
    const auto wake = [this] {
      doorbells_.Ring(share_.local_rank, Urgency::kQuiet);
      if (must_poll_) doorbells_.WakeCoordinator(share_.local_rank);
    };
    return std::make_unique<LinkedMessages>(*mux_, placement_.rank, wake, std::move(surroundings));
  }
  return std::make_unique<PointToPoint>(control_, share_, doorbells_, *arena_,
                                        std::move(surroundings));
}

Result<uint64_t> Engine::SubmitMessage(uint32_t process_set, Message message,
                                       Submission::Buffers buffers, double limit_seconds,
                                       std::function<void()> done) {
  if (stopping_.load(std::memory_order_acquire))
    return MakeError(ErrorKind::kAborted, "the engine has been shut down");
  const std::shared_ptr<ProcessSet> set = FindSet(process_set);
  if (!set)
    return MakeError(ErrorKind::kInvalid, "unknown process set " + std::to_string(process_set));
  const auto member = [&](int rank) {
    return std::ranges::find(set->ranks, rank) != set->ranks.end();
  };
  if (!member(placement_.rank)) {
    return MakeError(ErrorKind::kInvalid, "rank " + std::to_string(placement_.rank) +
                                              " is not in process set " + std::to_string(set->id));
  }
  if (!member(message.peer) && (message.sends || message.peer != kAnySource))
    return MakeError(ErrorKind::kInvalid, "the other rank of a message is not in the process set");
  const void* memory = message.sends ? buffers.input : buffers.output;
  if (!memory && message.bytes > 0)
    return MakeError(ErrorKind::kInvalid, "no memory was given for a message");

  auto entry = std::make_shared<Entry>();
  entry->process_set = process_set;
  entry->id = kNoId;
  entry->message = message;
  entry->display_name = NameOfMessage(message);
  const bool has_callback = done != nullptr;
  entry->done = std::move(done);
  entry->submitted_ns = NowNs();
  if (limit_seconds > 0) {
    entry->limit_seconds = limit_seconds;
    entry->deadline_ns = entry->submitted_ns + FromSeconds(limit_seconds);
  }
  entry->tensors.resize(1);
  entry->tensors[0].input = static_cast<const std::byte*>(buffers.input);
  entry->tensors[0].output = static_cast<std::byte*>(buffers.output);
  const uint64_t handle = handles_.Add(entry);
  entry->flight = events_.Emit(Phase::kQueued, process_set, handle, 0, message.bytes,
                               entry->display_name, message.sends ? "send" : "recv");
  {
    // After an abort the driver ends what it finds; what comes later must see the failure.
    std::lock_guard failed(failure_mutex_);
    Status begun;
    if (failure_) {
      begun = *failure_;
    } else if (message.sends) {
      begun = messages_->Send(entry);
    } else {
      messages_->Receive(entry);
    }
    if (!begun.ok()) {
      handles_.Remove(handle);
      return AnnotateError(std::move(begun.error()), nullptr, entry.get());
    }
  }
  // Nobody may ever wait for a call with a callback.
  if (has_callback) doorbells_.WakeCoordinator(share_.local_rank);
  return handle;
}

void Engine::CompleteMessage(Entry& entry, Status outcome) {
  const bool failed = !outcome.ok();
  if (failed) outcome = AnnotateError(std::move(outcome.error()), nullptr, &entry);
  events_.Emit(failed ? Phase::kError : Phase::kExecuted, entry.process_set, entry.handle, 0, 0,
               entry.display_name,
               failed ? std::string_view(outcome.error().message) : std::string_view(),
               entry.flight);
  entry.outcome = std::move(outcome);
  entry.complete.store(true, std::memory_order_seq_cst);
  WakeWaiters(entry);
}

// A peer that has left, or a set that has ended.
std::optional<Error> Engine::WhyNoMessage(const Entry& entry) const {
  const std::shared_ptr<ProcessSet> set = FindSet(entry.process_set);
  if (!set) return MakeError(ErrorKind::kAborted, "this rank has left the group");
  const SetEnd end = set->control->header().end.load(std::memory_order_acquire);
  if (end.removed() || end.gave_up()) return EndOfSet(end);
  const auto left = [&](int rank) {
    // What it sent before comes before its word that it leaves.
    if (multi_host_) return multi_host_->HasLeft(rank) || set->multi_host_controller->HasLeft(rank);
    if (end == SetEnd::Left(rank)) return true;
    const auto index = std::ranges::find(set->ranks, rank) - set->ranks.begin();
    if (set->control->cursor(static_cast<uint32_t>(index)).left.load(std::memory_order_acquire) !=
        0)
      return true;
    const auto local = std::ranges::find(share_.ranks, rank) - share_.ranks.begin();
    return static_cast<RankPhase>(control_.state(static_cast<uint32_t>(local))
                                      .phase.load(std::memory_order_acquire)) == RankPhase::kLeft;
  };
  const int peer = entry.message->peer;
  if (peer != kAnySource)
    return left(peer) ? std::optional(EndOfSet(SetEnd::Left(peer))) : std::nullopt;
  const auto here = [&](int rank) { return rank == placement_.rank || left(rank); };
  if (set->ranks.size() < 2 || !std::ranges::all_of(set->ranks, here)) return std::nullopt;
  return MakeError(ErrorKind::kAborted, "all other ranks of the group have shut down");
}

}  // namespace horoacc
