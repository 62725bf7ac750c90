#pragma once
// The control plane: turns what ranks announce into one ordered log of decisions.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "negotiate/board.h"
#include "negotiate/request.h"

namespace horoacc {

/// This rank is ready for a tensor (or a group): its row on the board is published.
struct Announcement {
  uint32_t id = 0;
  uint64_t generation = 0;
  uint32_t incarnation = 0;
  const Request* request = nullptr;
};

/// One entry of the log. Every rank of the set carries out the entries in the same order.
struct Decision {
  enum class Kind : uint32_t { kRun = 1, kError = 2 };
  Kind kind = Kind::kRun;
  bool done = false;    ///< the deciding rank has reduced it already
  bool shared = false;  ///< every buffer of it is in shared memory
  uint64_t slot = 0;    ///< number of its execution slot, if it is not done
  uint64_t end = 0;     ///< where it ends in the log
  std::vector<uint32_t> ids;
  /// kError: of `ids`. A rank that had not submitted a call when it was ended may have submitted
  /// the next one of that id by now.
  std::vector<uint64_t> generations;
  ErrorKind error = ErrorKind::kOk;
  int culprit = -1;
  std::string text;
};

/// What Plane::Gone says besides the global rank of a member that has shut down.
inline constexpr int kNobody = -1;
inline constexpr int kRemoved = -2;  ///< the process set was removed

/// One process set's plane, as one rank drives it. Announce and Unblock may come from any thread
/// (callers serialise Announce with a mutex of theirs); the rest only from the engine's driver.
class Plane {
 public:
  virtual ~Plane() = default;
  /// kAborted with culprit -2 asks to look the name up again: its id went to another name.
  virtual Status Announce(const Announcement& announcement) = 0;
  /// This rank is about to wait: a bucket of which it has submitted some members (`in_flight`)
  /// but not all must not wait for the others.
  virtual Status Unblock(std::span<const uint32_t> in_flight) = 0;
  /// Moves messages and overdue decisions.
  virtual Status Pump() = 0;
  /// The next decision that this rank has not taken.
  virtual Result<std::optional<Decision>> Next() = 0;
  /// Ends a call that can never become ready: its error goes to all ranks that have submitted it.
  /// Does nothing if it has become ready meanwhile; waits for room for its decision if it must.
  virtual Status Reject(TensorKey tensor, const Error& error) = 0;
  /// This rank has carried out a decision (in log order).
  virtual Status Finish(const Decision& decision) = 0;
  /// Who ended the set, if anybody did. Nothing is decided to run afterwards, and what Next gives
  /// after this was read includes everything that ever was.
  [[nodiscard]] virtual int Gone() = 0;
};

inline constexpr int kLookUpAgain = -2;

}  // namespace horoacc
