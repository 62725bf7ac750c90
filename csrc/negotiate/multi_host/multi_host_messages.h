#pragma once
// The messages of the controller of ranks that share no memory, and the fields that several of them
// have.
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "negotiate/call_numbers.h"
#include "negotiate/controller.h"
#include "negotiate/multi_host/ready_set.h"
#include "negotiate/wire.h"

namespace horoacc {

/// The first byte of a message.
enum class MultiHostMessage : uint8_t {
  // Up the tree.
  kReady = 1,
  kJoined = 2,
  kSplit = 3,
  kReject = 4,
  kEnd = 5,  ///< and down again
  // Down it.
  kDecision = 6,
  kPlan = 7,
  // Of any to the root, and back.
  kWhoHas = 8,
  // Of any to any other.
  kReleased = 9,
  kLeft = 10,
};

/// A call goes by its number where it has one (`numbers`: null for none), otherwise by its name.
void Put(WireWriter& writer, const CallName& call, const CallNumbers* numbers = nullptr);
[[nodiscard]] CallName GetCallName(WireReader& reader, const CallNumbers* numbers = nullptr);

void Put(WireWriter& writer, const std::optional<Attendance>& attendance);
[[nodiscard]] std::optional<Attendance> GetAttendance(WireReader& reader);

/// A decision in terms that all ranks understand.
struct MultiHostDecision {
  Decision decision;  ///< its ids and generations are each rank's own
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
};
/// `whole`: the sender's whole subtree has submitted the call with equal requests; then a number
/// may stand for call and request.
void PutReady(WireWriter& writer, const CallName& call, const ReadySet& ready_set, bool whole,
              uint64_t seen, const CallNumbers& numbers);
/// `subtree`: the sender's, ascending; a message about any other member is damaged.
[[nodiscard]] ReadyNews GetReady(WireReader& reader, std::span<const uint32_t> subtree,
                                 const CallNumbers& numbers);

}  // namespace horoacc
