// What all ranks are asked to do about process sets, compared.
#include <algorithm>
#include <limits>

#include "runtime/engine/engine.h"
#include "runtime/sets/in_set_zero.h"

namespace horoacc {
namespace {

constexpr int64_t kForEver = std::numeric_limits<int64_t>::max();

// What a rank says: the slots that it has free, what it was asked for, and the ranks, padded.
enum Field : size_t { kFreeSlots, kChange, kClaim, kRanks };
constexpr int64_t kNoRank = -1;

std::vector<int> RanksOf(const int64_t* said, int size) {
  const int64_t* const begin = said + kRanks;
  return {begin, std::find(begin, begin + size, kNoRank)};
}

// The distinct sets by their first rank, if every rank named one that it is in, and so did all in
// it; else none.
std::vector<std::vector<int>> PartsOf(const std::vector<std::vector<int>>& named) {
  std::vector<std::vector<int>> parts;
  for (size_t rank = 0; rank < named.size(); ++rank) {
    const std::vector<int>& own = named[rank];
    if (std::ranges::find(own, static_cast<int>(rank)) == own.end()) return {};
    if (!std::ranges::all_of(own, [&](int other) { return named[other] == own; })) return {};
    if (own.front() == static_cast<int>(rank)) parts.push_back(own);
  }
  return parts;
}

}  // namespace

const char* Engine::VerbOf(SetChange change) {
  return change == SetChange::kAdd ? "add" : "remove";
}

// All ranks exchange what they were asked for, so that a disagreement is an error everywhere
// instead of two sets with one number. Additions and removals meet under one name, so that one of
// each is a disagreement, too. There is no deadline: a rank that came later would agree with itself
// alone. Dead peers and the stall watch end the wait, and a caller whom a signal calls away leaves
// it to set_calls_.
Result<Engine::SetAgreement> Engine::AgreeOnSet(SetChange change, Claim claim,
                                                const std::vector<int>& ranks,
                                                uint64_t free_slots) {
  std::vector<int64_t> mine(placement_.size + kRanks, kNoRank);
  mine[kFreeSlots] = static_cast<int64_t>(free_slots);
  mine[kChange] = static_cast<int64_t>(change);
  mine[kClaim] = static_cast<int64_t>(claim);
  std::ranges::copy(ranks, mine.begin() + kRanks);
  Submission submission = InSetZero("horoacc.process_set", Collective::kAllgather);
  submission.request.tensors = {{DType::kInt64, {static_cast<int64_t>(mine.size())}}};
  submission.buffers = {{mine.data(), nullptr}};
  HA_ASSIGN(const uint64_t handle, Submit(std::move(submission)));
  Status outcome = Wait(handle, kForEver);
  const std::shared_ptr<Entry> entry = Find(handle);
  Release(handle);
  HA_TRY(std::move(outcome));
  const auto* const all = reinterpret_cast<const int64_t*>(entry->tensors[0].output);
  std::vector<std::vector<int>> named;
  int other = -1;  // the first that was asked for something else
  bool own_parts = true;
  for (int rank = 0; rank < placement_.size; ++rank) {
    const int64_t* const said = all + rank * mine.size();
    free_slots &= static_cast<uint64_t>(said[kFreeSlots]);
    own_parts &= said[kChange] == mine[kChange] && Claim{said[kClaim]} == Claim::kOwnPart;
    named.push_back(RanksOf(said, placement_.size));
    const bool alike = said[kChange] == mine[kChange] && named.back() == ranks &&
                       (Claim{said[kClaim]} == Claim::kRefused) == (claim == Claim::kRefused);
    if (!alike && other < 0) other = rank;
  }
  if (other < 0) return SetAgreement{free_slots, {}};
  if (own_parts) {
    std::vector<std::vector<int>> parts = PartsOf(named);
    if (!parts.empty()) return SetAgreement{free_slots, std::move(parts)};
  }
  const int64_t* const said = all + other * mine.size();
  const std::string here = "rank " + std::to_string(placement_.rank);
  const std::string there = "rank " + std::to_string(other);
  std::string text;
  if (said[kChange] != mine[kChange]) {
    text = here + " was asked to " + VerbOf(change) + " one, " + there + " to " +
           VerbOf(static_cast<SetChange>(said[kChange])) + " one";
  } else if (Claim{said[kClaim]} == Claim::kRefused) {
    text = there + " could not " + VerbOf(change) + " its own";
  } else {
    text = here + " and " + there + " do not " + VerbOf(change) + " the same ranks";
  }
  return MakeError(ErrorKind::kInvalid, "process sets differ: " + text, other);
}

// A bad call takes part too: the other ranks wait for this one. The error names this rank as the
// culprit unless all ranks made a bad call.
Error Engine::Refuse(SetChange change, std::string reason) {
  const Result<SetAgreement> agreed = AgreeOnSet(change, Claim::kRefused, {}, 0);
  if (agreed.ok()) return MakeError(ErrorKind::kInvalid, std::move(reason));
  // That the others asked for something else is no news; that a rank is lost is.
  if (agreed.error().kind != ErrorKind::kInvalid) return agreed.error();
  return MakeError(ErrorKind::kInvalid, std::move(reason), placement_.rank);
}

}  // namespace horoacc
