#pragma once
// The words that the ranks of a host leave for the leader of their set, which passes them on to
// other hosts: a ring in the set's part of the control segment.
#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "negotiate/control_segment/segment_layout.h"

namespace horoacc {

/// One item; the members that its kind does not need are 0.
struct OutboxItem {
  enum class Kind : uint32_t {
    kReady = 1,  ///< the call `tensor`: each rank of the host has submitted it or has joined
    kWaiting,    ///< the call has waited for long for other ranks of this host
    kJoined,     ///< rank `value` of the host, after `count` unnamed calls
    kSplit,      ///< bucket `value` waits; `tensor` is in it; `count` decisions were in the log
    kReject,     ///< ends the call with `error`
    kEnd,        ///< `value`: a SetEnd, as on the wire
    kAsk,        ///< a rank of the host wants to know which ranks the call waits for
    kAskJoin,    ///< or which have joined
    kReleased,   ///< all ranks of the host are done with the set
  };
  Kind kind = Kind::kReady;
  TensorKey tensor{};
  uint32_t value = 0;
  uint64_t count = 0;
  Error error = MakeError(ErrorKind::kOk, "");
};

/// Ranks put items in under the set's lock, and the leader takes them out under it.
class Outbox {
 public:
  Outbox() = default;
  Outbox(OutboxHeader* header, uint32_t* words) : header_(header), words_(words) {}

  /// False: there is no room for an item of this kind now; the rank has to come again. Items that
  /// tell of a call that is ready, of a join, an end or a release always have room.
  [[nodiscard]] bool Put(const OutboxItem& item) const;
  [[nodiscard]] std::vector<OutboxItem> TakeAll() const;
  /// Without the lock.
  [[nodiscard]] bool empty() const {
    return header_->put.load(std::memory_order_acquire) ==
           header_->taken.load(std::memory_order_acquire);
  }

 private:
  OutboxHeader* header_ = nullptr;
  uint32_t* words_ = nullptr;
};

}  // namespace horoacc
