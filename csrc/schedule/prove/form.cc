#include "schedule/prove/form.h"

namespace horoacc::schedule {
namespace {

bool NamesOneTwice(const Step& step, uint32_t from, uint32_t to) {
  for (uint32_t k = from; k < to; ++k) {
    for (uint32_t other = from; other < k; ++other) {
      if (step.peer[other] == step.peer[k]) return true;
    }
  }
  return false;
}

bool NamesNobody(const Step& step, uint32_t rank, const Facts& facts) {
  if ((step.flags & (kReceiveRange | kSendRange)) != 0 &&
      uint64_t{step.peer[0]} + step.peer[1] > facts.ranks) {
    return true;
  }
  bool wrong = false;
  const auto check = [&](uint32_t peer) { wrong = wrong || peer >= facts.ranks || peer == rank; };
  ForEachSource(step, rank, check);
  ForEachTarget(step, rank, check);
  return wrong;
}

}  // namespace

const char* CheckForm(const Step& step, uint32_t rank, const Facts& facts) {
  const bool own = step.op != Op::kRecv && step.op != Op::kRecvCopySend;
  const bool receives = step.op != Op::kSend && step.op != Op::kCopy;
  const bool stores = step.op != Op::kSend && step.op != Op::kRecvReduceSend;
  const bool sends = step.op != Op::kCopy && step.op != Op::kRecv && step.op != Op::kRecvReduce;
  if (own != (step.src != Buffer::kNone)) return "has a wrong source";
  if (stores != (step.dst != Buffer::kNone)) return "has a wrong destination";
  if (!receives && Receives(step)) return "receives";
  if (!sends && Sends(step)) return "sends";
  if (!own && !Receives(step)) return "has nothing to receive from";
  if (!own && (step.flags & kPrescaleOwn)) return "scales what it does not have";
  if (!receives && (step.flags & kPrescaleReceived)) return "scales what it does not receive";
  if ((!own || step.op == Op::kSend) && (step.flags & kPostscale)) return "finishes no sum";
  const bool many = step.receives > 1 || (step.flags & kReceiveRange) != 0;
  if (step.op == Op::kRecvCopySend && many) return "copies from many";
  if (step.receives + step.sends > kMaxPeers) return "has too many peers";
  if (NamesOneTwice(step, 0, step.receives) ||
      NamesOneTwice(step, step.receives, step.receives + step.sends)) {
    return "names a peer twice";
  }
  if (NamesNobody(step, rank, facts)) return "has a peer that is no other rank";
  return nullptr;
}

// An executor gives unfinished sums a type of their own, and chunks of scratch the size of what
// they are said to be kept for.
const char* CheckPlace(const Schedule& schedule, uint32_t rank, const Step& step, uint32_t chunk,
                       const Value& value) {
  const Goal goal = schedule.facts().goal;
  const bool sums =
      goal == Goal::kAllreduce || goal == Goal::kReduceScatter || goal == Goal::kReduce;
  if (step.dst == Buffer::kScratch) {
    const Part part = schedule.kept(rank, chunk % schedule.scratch(rank));
    if (part.chunk != value.chunk) return "keeps a chunk where another one belongs";
    if (sums && (value.finished || !value.scaled)) return "keeps what is no unfinished sum";
    const uint64_t source = uint64_t{1} << part.source;
    if (!sums && value.ranks != source) return "keeps what came from another rank";
  } else if (sums && step.src == Buffer::kNone && !value.finished) {
    return "takes an unfinished sum for a result";
  }
  return nullptr;
}

}  // namespace horoacc::schedule
