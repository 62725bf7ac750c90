#pragma once
// One step of a rank's lane: receive, combine, store and send.
//
// A step names chunks and peers, never bytes or pointers, so one list serves every size, the host
// executor, a kernel that interprets it, the prover and the simulator. docs/schedules.md is the
// contract of its executor.
#include <cstdint>

namespace horoacc::schedule {

/// "own" is the chunks `src_chunk` of buffer `src` on this rank, "result" what the step makes.
enum class Op : uint8_t {
  kSend,                ///< own → peers
  kCopy,                ///< own → dst
  kRecv,                ///< received → dst
  kRecvReduce,          ///< own ⊕ all received → dst
  kRecvReduceSend,      ///< own ⊕ all received → peers; not stored
  kRecvReduceCopySend,  ///< own ⊕ all received → dst, and to peers
  kRecvCopySend,        ///< received → dst, and on to peers
};

enum class Buffer : uint8_t { kNone, kInput, kOutput, kScratch };

/// Where the factors of a reduction are applied; an executor skips those that are 1.
enum Flag : uint8_t {
  kPrescaleOwn = 1,       ///< own is raw input: the factor before the sum belongs on it
  kPrescaleReceived = 2,  ///< the received chunks are raw input
  kPostscale = 4,         ///< the result is the sum over all ranks
  /// Receive from all of [peer[0], peer[0] + peer[1]) but this rank. kRecv puts rank p's message
  /// into the chunks from dst_chunk + (p - peer[0]) * count on; other operations reduce.
  kReceiveRange = 8,
  kSendRange = 16,  ///< send the same to all of [peer[0], peer[0] + peer[1]) but this rank
};

inline constexpr uint32_t kMaxPeers = 3;

struct Step {
  Op op = Op::kSend;
  uint8_t flags = 0;
  uint8_t receives = 0;        ///< peers to receive from, first in `peer`; 0 with kReceiveRange
  uint8_t sends = 0;           ///< peers to send to, next in `peer`; 0 with kSendRange
  uint32_t peer[kMaxPeers]{};  ///< ranks
  uint32_t src_chunk = 0;
  uint32_t dst_chunk = 0;
  uint16_t count = 1;  ///< chunks in a row, cyclic in their buffer; 0: an empty message, a signal
  Buffer src : 4 = Buffer::kNone;
  Buffer dst : 4 = Buffer::kNone;
  /// A link is (sender, receiver, channel): a FIFO with one lane at each end.
  uint8_t channel = 0;
  uint32_t after = 0;  ///< mask of this rank's lanes that must have ended this window
};
static_assert(sizeof(Step) == 32);

[[nodiscard]] constexpr bool Receives(const Step& step) {
  return step.receives > 0 || (step.flags & kReceiveRange) != 0;
}
[[nodiscard]] constexpr bool Sends(const Step& step) {
  return step.sends > 0 || (step.flags & kSendRange) != 0;
}

/// Calls `visit` with every peer that `rank` receives from in this step, in ascending place.
template <typename Visit>
constexpr void ForEachSource(const Step& step, uint32_t rank, Visit visit) {
  if (step.flags & kReceiveRange) {
    for (uint32_t p = step.peer[0]; p < step.peer[0] + step.peer[1]; ++p) {
      if (p != rank) visit(p);
    }
  }
  for (uint32_t k = 0; k < step.receives; ++k) visit(step.peer[k]);
}

/// Calls `visit` with the step. A step that gathers from a range becomes one step for each source:
/// these are independent, and every message has its own place.
template <typename Visit>
constexpr void ForEachGatherStep(const Step& step, uint32_t rank, Visit visit) {
  if (step.op != Op::kRecv || (step.flags & kReceiveRange) == 0) return visit(step);
  ForEachSource(step, rank, [&](uint32_t source) {
    Step one = step;
    one.flags = static_cast<uint8_t>(one.flags & ~kReceiveRange);
    one.receives = 1;
    one.peer[0] = source;
    one.dst_chunk = step.dst_chunk + (source - step.peer[0]) * step.count;
    visit(one);
  });
}

/// Calls `visit` with every peer that `rank` sends to in this step.
template <typename Visit>
constexpr void ForEachTarget(const Step& step, uint32_t rank, Visit visit) {
  if (step.flags & kSendRange) {
    for (uint32_t p = step.peer[0]; p < step.peer[0] + step.peer[1]; ++p) {
      if (p != rank) visit(p);
    }
  }
  for (uint32_t k = 0; k < step.sends; ++k) visit(step.peer[step.receives + k]);
}

}  // namespace horoacc::schedule
