#pragma once
// The messages between the leaders of a set's hosts, the fields that several of them have, and the
// notes that a leader leaves in its host's log.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "negotiate/call_numbers.h"
#include "negotiate/controller.h"
#include "negotiate/multi_host/grants.h"
#include "negotiate/multi_host/ready_set.h"
#include "negotiate/multi_host/told_buckets.h"
#include "negotiate/wire.h"

namespace horoacc {

/// The first byte of a message.
enum class MultiHostMessage : uint8_t {
  // Up the tree.
  kReady = 1,
  kJoined = 2,
  kSplit = 3,
  kReject = 4,
  // Up, and down again.
  kEnd = 5,
  kWhoHas = 6,
  kReleased = 7,
  // Down it.
  kDecision = 8,
  kPlan = 9,
  kExchange = 10,  ///< between two hosts: a barrier, or the inputs of the root's
  // Between two hosts.
  kWithdraw = 11,   ///< down: the root's host rejects a call that it has offered
  kGivenBack = 12,  ///< up: the other host has not run it, and will not
  kEnded = 13,      ///< up: the end has come
  // Of grants.
  kRevoke = 14,  ///< up: a host asks for it; down: all hosts say what they have begun
  kBegun = 15,   ///< up: what a host and all below it have begun
  kSettle = 16,  ///< down: what all have begun
};

[[nodiscard]] WireWriter Begin(MultiHostMessage kind);

/// A call goes by its number where it has one (`numbers`: null for none), otherwise by its name.
void Put(WireWriter& writer, const CallName& call, const CallNumbers* numbers = nullptr);
[[nodiscard]] CallName GetCallName(WireReader& reader, const CallNumbers* numbers = nullptr);

void Put(WireWriter& writer, const std::optional<Attendance>& attendance);
[[nodiscard]] std::optional<Attendance> GetAttendance(WireReader& reader);

void Put(WireWriter& writer, const std::vector<BucketMembers>& changes);
[[nodiscard]] std::vector<BucketMembers> GetBuckets(WireReader& reader);

void Put(WireWriter& writer, const BegunRounds& begun);
[[nodiscard]] BegunRounds GetBegun(WireReader& reader);

/// The parts of a decision that do not fit in the log's entry. Empty: the facts of its calls are.
[[nodiscard]] std::vector<std::byte> NoteOf(const Decision& decision);
/// Adds them to a decision of the log. False: the note is damaged.
[[nodiscard]] bool TakeNote(std::span<const std::byte> note, Decision& decision);

/// The answer to a rank's question, as the note of an entry of kind kNews.
struct AttendanceNews {
  std::optional<TensorKey> tensor;  ///< none: of the join
  std::optional<Attendance> attendance;
};
[[nodiscard]] std::vector<std::byte> NoteOf(const AttendanceNews& news);
[[nodiscard]] std::optional<AttendanceNews> TakeNews(std::span<const std::byte> note);

/// A decision in terms that all hosts understand.
struct MultiHostDecision {
  Decision decision;  ///< its ids, generations and slot are each host's own
  std::vector<CallName> calls;
};

void Put(WireWriter& writer, const MultiHostDecision& multi_host, const CallNumbers& numbers);
[[nodiscard]] MultiHostDecision GetMultiHostDecision(WireReader& reader,
                                                     const CallNumbers& numbers);

/// News of a call on its way up. `seen`: decisions that its sender had taken by then.
struct ReadyNews {
  uint64_t seen = 0;
  CallName call;
  ReadySet ready_set;
  bool direct = false;  ///< see DirectExchange
};
/// `whole`: the sender's whole subtree has submitted the call with equal requests; then a number
/// may stand for call and request.
void PutReady(WireWriter& writer, const CallName& call, const ReadySet& ready_set, bool whole,
              uint64_t seen, const CallNumbers& numbers, bool direct = false);
/// `subtree`: the sender's, ascending; a message about any other member is damaged.
[[nodiscard]] ReadyNews GetReady(WireReader& reader, std::span<const uint32_t> subtree,
                                 const CallNumbers& numbers);

}  // namespace horoacc
