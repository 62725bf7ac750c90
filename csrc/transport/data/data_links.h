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
#include <vector>

#include "base/result.h"

namespace horoacc {

/// All ranks number a process set's collectives alike, in the order of the decisions.
struct CollectiveId {
  uint32_t set = 0;
  uint64_t sequence = 0;
  friend auto operator<=>(const CollectiveId&, const CollectiveId&) = default;
  [[nodiscard]] bool standing() const;
  /// Its links may be opened by the sender alone: see TakeCallers.
  [[nodiscard]] bool calls() const { return standing() && sequence == 0; }
};

/// The number of no process set. Its links are standing: they belong to no collective, so that a
/// peer that shuts down in good order is no error for them.
inline constexpr uint32_t kStandingSet = 0xfffffffe;
inline bool CollectiveId::standing() const { return set == kStandingSet; }

/// One end of a link. Both ranks open theirs with the same numbers, in any order and at any time
/// before the first use; neither waits for the other.
struct LinkSpec {
  CollectiveId collective;
  int peer = -1;  ///< rank of the job at the other end
  uint8_t channel = 0;
  uint32_t slots = 1;       ///< messages that were posted and not yet released; at least 1
  uint64_t slot_bytes = 0;  ///< no message is longer
};

/// The pieces of a message, in order. Pieces may be empty; a message of no bytes also takes a slot
/// and must be received.
using SendPieces = std::span<const std::span<const std::byte>>;
using ReceivePieces = std::span<const std::span<std::byte>>;

/// The sending end. Closed by its destructor.
class SendLink {
 public:
  virtual ~SendLink() = default;
  /// How many messages, in order, the receiver has released, so that their memory is not read any
  /// more. Grows during DataLinks::Progress, or at any time in shared memory.
  [[nodiscard]] virtual uint64_t taken() = 0;
  [[nodiscard]] bool HasRoom() { return posted_ - taken() < slots_; }
  /// Whether memory of posted messages may still be read. False may come before taken(), as over
  /// sockets, which copy: then the link may be closed, and posted messages still arrive.
  [[nodiscard]] virtual bool Reads() { return taken() < posted_; }
  /// The memory of the next message's slot, `slot_bytes` long and aligned to 64, for a message
  /// without memory of its own. Usable if HasRoom(), until the message is taken.
  [[nodiscard]] virtual Result<std::byte*> Slot() = 0;
  /// Sends the next message; HasRoom() must be true. The link reads the bytes without a copy, at
  /// any time until the message is taken: they must not change before that. The list is not kept.
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

/// A message that has arrived, readable until Release. It is cut like the sender's pieces, like
/// those of Expect, or not at all.
struct Arrival {
  SendPieces pieces;
  bool placed = false;  ///< it lies in the buffer of Expect; otherwise the caller copies it there
};

/// The receiving end. Closed by its destructor, after which the link writes to no memory of Expect.
class ReceiveLink {
 public:
  virtual ~ReceiveLink() = default;
  /// Announces the next message, in order; at most `slots` may be announced and not released.
  /// `where`, if it is not empty, is a buffer as long as the message. The link writes the message's
  /// bytes there as they arrive, and nothing before: until the sender has posted it, this rank or a
  /// sending link may still read the buffer. The list is not kept.
  virtual Status Expect(uint64_t bytes, ReceivePieces where) = 0;
  /// The oldest announced message that is not released, if it has arrived in full; else nullptr.
  /// kMismatch if the sender's message has another size.
  [[nodiscard]] virtual Result<const Arrival*> Arrived() = 0;
  /// Returns the slot of that message to the sender.
  virtual void Release() = 0;
};

struct DataCounters {
  uint64_t messages = 0;  ///< posted
  uint64_t bytes = 0;     ///< posted
  uint64_t copied = 0;    ///< bytes among them that were copied to a slot to be sent
};

/// One rank's data links to all its peers. Driven by one thread at a time, the links included;
/// links are destroyed before this object. A link never waits for another one: messages that a
/// receiver does not take stay in their slots, and block nothing else from the same peer.
class DataLinks {
 public:
  virtual ~DataLinks() = default;
  /// kInvalid if the peer cannot be reached, or the link is open already.
  virtual Result<std::unique_ptr<SendLink>> OpenSend(const LinkSpec& spec) = 0;
  /// Messages may have come before; they wait for this call.
  virtual Result<std::unique_ptr<ReceiveLink>> OpenReceive(const LinkSpec& spec) = 0;
  /// Ranks that have a message for this one on a link of {kStandingSet, 0} that is not open here.
  /// Progress finds them, and each is named once: the caller opens its end.
  virtual std::vector<int> TakeCallers() = 0;
  /// Sends and receives without blocking. True if any byte moved: then the caller calls again. An
  /// error is kPeerLost with the culprit, kMismatch for a frame of another epoch or of no possible
  /// link, or the error given to Abort; every later call returns it. Call it after the last link is
  /// closed, too, as long as HasUnsent().
  virtual Result<bool> Progress() = 0;
  [[nodiscard]] virtual bool HasUnsent() { return false; }
  /// Ends all links: from now on every call that can fail returns `error`, peers are told as far as
  /// possible, and no memory of a link is read or written. Only peers on this host may still read
  /// shared memory, which must not change until those peers have stopped as well.
  virtual void Abort(const Error& error) = 0;
  /// As ControlLinks::LeaveToParent.
  virtual void LeaveToParent() {}
  /// A descriptor that is readable (epoll, level-triggered) when Progress has something to do, or
  /// -1. Messages in shared memory ring this rank's doorbell instead (doorbell.h).
  [[nodiscard]] virtual int WaitFd() const = 0;
  /// Whether the caller must poll Progress, because there is no descriptor (MPI).
  [[nodiscard]] virtual bool MustPoll() const { return false; }
  /// "tcp", "mpi", "shm", "inproc" or "mix".
  [[nodiscard]] virtual const char* kind() const = 0;
  [[nodiscard]] virtual DataCounters counters() const = 0;
};

/// "collective 7 of set 0, channel 1, message 3 from rank 2": how errors name a message.
[[nodiscard]] std::string NameOfMessage(const CollectiveId& collective, uint8_t channel,
                                        uint64_t number, int sender);

/// Data links of several kinds as one: shared memory inside a host, sockets or MPI between hosts.
/// `part_of`: by rank of the job, the index of the part that reaches it, or -1. Both ends of a link
/// must choose alike. kSystem if the descriptors cannot be watched together.
[[nodiscard]] Result<std::unique_ptr<DataLinks>> MixDataLinks(
    std::vector<std::unique_ptr<DataLinks>> parts, std::vector<int> part_of);

}  // namespace horoacc
