#pragma once
// The controller: turns the announcements of ranks into one ordered log of decisions.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "negotiate/control_segment/segment_layout.h"
#include "negotiate/request.h"
#include "schedule/select.h"

namespace horoacc {

/// This rank is ready for a tensor (or a group): its row on the control segment is published.
struct Announcement {
  uint32_t id = 0;
  uint64_t generation = 0;
  uint32_t id_version = 0;
};

/// The parts of the requests of other hosts' ranks that a rank needs to carry out a call.
struct CallFacts {
  Request request{};                ///< of a partial decision: for the ranks that have joined
  std::vector<int64_t> rows{};      ///< allgather: first dimensions, by tensor, then by member
  std::vector<int64_t> splits{};    ///< alltoall: rows, by sender, then by receiver
  std::vector<std::byte> result{};  ///< of a decision that is done (eager.h)
  Proposal proposal{};              ///< of all ranks, unless the decision is partial
};

/// One entry of the log. The ranks of a host carry out the entries in the same order, and those of
/// other hosts, too, but for direct exchanges (direct_exchange.h) and granted calls (grants.h).
struct Decision {
  /// kJoin: all ranks have joined, and submit again from here on. kNews: an answer to a question of
  /// this host, which controllers keep to themselves. kDrain: other hosts have begun a call that is
  /// dropped (multi_host/grants.h), as facts[0] says: this one takes what they have sent.
  enum class Kind : uint32_t { kRun = 1, kError = 2, kJoin = 3, kNews = 4, kDrain = 5 };
  Kind kind = Kind::kRun;
  Path path = Path::kNone;  ///< kRun: how the ranks carry it out
  bool shared = false;      ///< every buffer of it is in shared memory
  bool partial = false;     ///< ranks that have joined take no part; the only id is an allreduce
  uint64_t slot = 0;        ///< number of its execution slot, if it is not done()
  uint64_t end = 0;         ///< where it ends in the log
  /// Of the root, kRun: from the next round on hosts begin its call by themselves, under this
  /// number; 0: they do not.
  uint64_t grant = 0;
  /// The number of its run between hosts, which began without the root; 0: it is the set's next.
  uint64_t run = 0;
  std::vector<uint32_t> ids;
  /// kError: of `ids`. A rank that had not submitted a call when it was ended may have submitted
  /// the next one of that id by now.
  std::vector<uint64_t> generations;
  Error error = MakeError(ErrorKind::kOk, "");  ///< kError
  int last_joined = -1;                         ///< kJoin: global rank
  uint64_t unnamed = 0;  ///< kJoin: unnamed calls so far, of the rank that made most
  /// Of a set on several hosts: for each of `ids`, or for the one that no rank of this host, where
  /// all have joined, has submitted.
  std::vector<CallFacts> facts;

  [[nodiscard]] static Decision Failure(Error error) {
    Decision decision;
    decision.kind = Kind::kError;
    decision.error = std::move(error);
    return decision;
  }
  /// There is nothing to move, or the deciding rank has reduced it already.
  [[nodiscard]] bool done() const {
    return path == Path::kNone || path == Path::kLastArriver || path == Path::kEager;
  }
};

/// The global ranks that have submitted a call, and those for which it waits. A rank that has
/// joined is neither.
struct Attendance {
  std::vector<int> ready;
  std::vector<int> missing;
};

/// The outcome of an announcement.
enum class Announced : uint8_t {
  kTaken,
  /// Not taken: the call's generation is over, or its id has gone to another name.
  kLookUpAgain,
};

/// One process set's controller, as one rank drives it. Announce, Join, Unblock, End, Ended, WhoHas
/// and HoldsNews may come from any thread (callers serialise the first two with a mutex of theirs);
/// the rest only from the engine's driver.
class Controller {
 public:
  virtual ~Controller() = default;
  virtual Result<Announced> Announce(const Announcement& announcement) = 0;
  /// This rank is about to wait: a bucket of which it has submitted some members (`in_flight`)
  /// but not all must not wait for the others.
  virtual Status Unblock(std::span<const uint32_t> in_flight) = 0;
  /// This rank submits nothing more until a decision says that all ranks have joined; allreduces of
  /// the others run without it. `unnamed`: unnamed calls that it has submitted.
  virtual Status Join(uint64_t unnamed) = 0;
  /// Moves messages and overdue decisions.
  virtual Status Pump() = 0;
  /// The next decision that this rank has not taken.
  virtual Result<std::optional<Decision>> Next() = 0;
  /// Ends a call that can never become ready: its error goes to all ranks that have submitted it.
  /// Does nothing if it has become ready meanwhile; waits for room for its decision if it must.
  virtual Status Reject(TensorKey tensor, const Error& error) = 0;
  /// This rank has carried out a decision (in log order).
  virtual Status Finish(const Decision& decision) = 0;
  /// Asks for the end of the set, which has one reason: the first. kSystem if the set's lock is not
  /// to be had.
  virtual Status End(SetEnd end) = 0;
  /// The ranks that have submitted an undecided call of this rank or, without a key, those that
  /// have joined. nullopt: this rank does not know yet, and knows at a later look.
  [[nodiscard]] virtual Result<std::optional<Attendance>> WhoHas(
      std::optional<TensorKey> tensor) = 0;
  /// The reason why the set has ended. No decision to run is made afterwards, and Next, called
  /// after this, gives every decision that was made.
  [[nodiscard]] virtual SetEnd Ended() = 0;
  /// Does this rank hold announcements of others that Pump has to send on after a while?
  [[nodiscard]] virtual bool HoldsNews() { return false; }
  /// The set has ended, and this rank has carried out all decisions. Called once or more.
  virtual Status Release() { return {}; }
  /// All other ranks have called Release, too: no rank needs anything of this one for the set any
  /// more.
  [[nodiscard]] virtual bool Released() { return true; }
};

}  // namespace horoacc
