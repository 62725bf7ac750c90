#pragma once
// The links that carry the payload of collectives: one rank's ends of them. Nothing here blocks.
//
// A link is (collective, sender, receiver, channel): a FIFO of messages with a bounded number of
// slots. Both ends know every message's size beforehand, so nothing is negotiated; every message
// carries its collective, channel and number, and what does not fit is an error that names both.
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

namespace horoacc {

/// All ranks number the collectives of a process set alike, in the order in which they were
/// decided.
struct CollectiveId {
  uint32_t set = 0;
  uint64_t sequence = 0;
  friend auto operator<=>(const CollectiveId&, const CollectiveId&) = default;
};

/// One end of a link. Both ranks open theirs with the same numbers, in any order and at any time
/// before the first use; neither waits for the other.
struct LinkSpec {
  CollectiveId collective;
  int peer = -1;  ///< rank of the job at the other end
  uint8_t channel = 0;
  uint32_t slots = 1;       ///< messages that were posted and not yet released; at least 1
  uint64_t slot_bytes = 0;  ///< no message is longer
};

/// A message is what lies in these pieces, one after the other. Pieces may be empty, and a message
/// of no bytes is a message: it takes a slot and has to be received.
using SendPieces = std::span<const std::span<const std::byte>>;
using ReceivePieces = std::span<const std::span<std::byte>>;

/// The sending end. Closed by its destructor.
class SendLink {
 public:
  virtual ~SendLink() = default;
  /// Messages that the receiver has released, and whose memory is not read any more. The first
  /// taken() messages, always; grows during DataLinks::Progress, or by itself in shared memory.
  [[nodiscard]] virtual uint64_t taken() = 0;
  [[nodiscard]] bool HasRoom() { return posted_ - taken() < slots_; }
  /// Whether memory of what was posted may still be read. A link that has copied it on its way, as
  /// one over sockets does, may say no before the messages are taken: then whoever has no more to
  /// post may close it, and what was posted arrives.
  [[nodiscard]] virtual bool Reads() { return taken() < posted_; }
  /// The memory of the next message's slot, `slot_bytes` long and aligned to 64: for a message that
  /// lies nowhere else. It is free if HasRoom(), and the message's until that is taken.
  [[nodiscard]] virtual Result<std::byte*> Slot() = 0;
  /// The next message; HasRoom() must be true. The bytes are read from where they lie, at any time
  /// until the message is taken: they must not change before that. The list itself is not kept.
  Status Post(SendPieces pieces) {
    for (const auto& piece : pieces) bytes_posted_ += piece.size();
    HA_TRY(DoPost(posted_, pieces));
    ++posted_;
    return {};
  }
  [[nodiscard]] uint64_t posted() const { return posted_; }
  [[nodiscard]] uint64_t bytes_posted() const { return bytes_posted_; }

 protected:
  explicit SendLink(uint32_t slots) : slots_(slots) {}

 private:
  virtual Status DoPost(uint64_t number, SendPieces pieces) = 0;

  const uint32_t slots_;
  uint64_t posted_ = 0;
  uint64_t bytes_posted_ = 0;
};

/// What has arrived, where it lies: readable until Release. It is cut where the sender's pieces, or
/// those of Expect, end, or not at all.
struct Arrival {
  SendPieces pieces;
  bool placed = false;  ///< it lies where Expect said; otherwise whoever wants it there copies it
};

/// The receiving end. Closed by its destructor, after which nothing is written to memory that was
/// named to Expect.
class ReceiveLink {
 public:
  virtual ~ReceiveLink() = default;
  /// Announces the next message that was not announced yet: at most `slots` that are not released,
  /// in order. `where`, if it is not empty, is where the bytes should go, as long as the message.
  /// The message's bytes may be written there as they come, and nothing before: until the sender
  /// has posted it, what lies there may still be read, by this rank or by a link that sends it. The
  /// list is not kept.
  virtual Status Expect(uint64_t bytes, ReceivePieces where) = 0;
  /// The oldest announced message that is not released, once all of it is there; else nullptr.
  /// kMismatch if the sender's message has another size.
  [[nodiscard]] virtual Result<const Arrival*> Arrived() = 0;
  /// Gives the slot of that message back to the sender.
  virtual void Release() = 0;
};

struct DataCounters {
  uint64_t messages = 0;  ///< posted
  uint64_t bytes = 0;     ///< posted
  uint64_t copied = 0;    ///< bytes among them that were copied to a slot to be sent
};

/// One rank's data links to all its peers. Driven by one thread at a time, the links included;
/// links go before the object that opened them. A link never waits for another one: what a lane
/// does not take stays in its slots, and holds up nothing else that comes from the same peer.
class DataLinks {
 public:
  virtual ~DataLinks() = default;
  /// kInvalid if there is no way to the peer, or this link is open already.
  virtual Result<std::unique_ptr<SendLink>> OpenSend(const LinkSpec& spec) = 0;
  /// Messages may have come before; they wait for this call.
  virtual Result<std::unique_ptr<ReceiveLink>> OpenReceive(const LinkSpec& spec) = 0;
  /// Moves what can be moved now. True if anything has: whoever found nothing to do looks again.
  /// An error says that a peer is lost (kPeerLost, with the culprit), that a frame belongs to
  /// another epoch or to no link that there could be (kMismatch), or what Abort was given; it comes
  /// again every time. Goes on being called for the sake of peers after the last link is closed, as
  /// long as HasUnsent().
  virtual Result<bool> Progress() = 0;
  [[nodiscard]] virtual bool HasUnsent() { return false; }
  /// Ends all links: from now on every call that can fail gives `error`, peers are told as far as
  /// possible, and no memory of a link is read or written, but for what peers on this host still
  /// read of shared memory: that must stay as it is until they have stopped as well.
  virtual void Abort(const Error& error) = 0;
  /// As ControlLinks::LeaveToParent.
  virtual void LeaveToParent() {}
  /// A descriptor that is readable (epoll, level-triggered) when Progress has something to do, or
  /// -1. News in shared memory rings this rank's doorbell instead (doorbell.h).
  [[nodiscard]] virtual int WaitFd() const = 0;
  /// Neither the descriptor nor a doorbell tells of all news: look again after a while (MPI).
  [[nodiscard]] virtual bool MustPoll() const { return false; }
  /// "tcp", "mpi", "shm", "inproc" or "mix".
  [[nodiscard]] virtual const char* kind() const = 0;
  [[nodiscard]] virtual DataCounters counters() const = 0;
};

/// "collective 7 of set 0, channel 1, message 3 from rank 2": how errors name a message.
[[nodiscard]] std::string NameOfMessage(const CollectiveId& collective, uint8_t channel,
                                        uint64_t number, int sender);

}  // namespace horoacc
