#include "execute/cuda/persistent/kernel_trace.h"

#include <algorithm>
#include <string>

namespace horoacc::cuda {

using schedule::Buffer;
using schedule::Op;
using schedule::Step;

namespace {

bool ReducesWhatItReceives(const Step& step) {
  return step.op == Op::kRecvReduce || step.op == Op::kRecvReduceSend ||
         step.op == Op::kRecvReduceCopySend;
}

Memory MemoryOf(Buffer buffer) {
  switch (buffer) {
    case Buffer::kInput:
      return Memory::kInput;
    case Buffer::kOutput:
      return Memory::kOutput;
    case Buffer::kScratch:
      return Memory::kScratch;
    default:
      return Memory::kNone;
  }
}

}  // namespace

Result<KernelTrace> KernelTrace::Of(const schedule::Schedule& schedule, const TraceRules& rules) {
  KernelTrace trace(schedule, rules);
  trace.Expand();
  HA_TRY(trace.Run());
  trace.NumberCells();
  return trace;
}

/// A step that gathers from a range becomes one step for each source: these steps are independent,
/// and every message has its own place.
void KernelTrace::Expand() {
  const schedule::Facts& facts = schedule_.facts();
  for (uint32_t rank = 0; rank < facts.ranks; ++rank) {
    for (uint32_t lane = 0; lane < facts.lanes; ++lane) {
      std::vector<Step>& steps = steps_.emplace_back();
      for (uint32_t k = 0; k < schedule_.steps(rank, lane); ++k) {
        ForEachGatherStep(schedule_.step(rank, lane, k), rank,
                          [&](const Step& step) { steps.push_back(step); });
      }
    }
  }
  next_.resize(steps_.size());
  lanes_.resize(steps_.size());
}

Status KernelTrace::Run() {
  const uint32_t lanes = schedule_.facts().lanes;
  for (bool moved = true; moved;) {
    moved = false;
    for (uint32_t index = 0; index < steps_.size(); ++index) {
      const uint32_t rank = index / lanes;
      const uint32_t lane = index % lanes;
      while (next_[index] < steps_[index].size() &&
             MayRun(rank, lane, steps_[index][next_[index]])) {
        RunStep(rank, lane, steps_[index][next_[index]]);
        ++next_[index];
        moved = true;
      }
    }
  }
  for (uint32_t index = 0; index < steps_.size(); ++index) {
    if (next_[index] == steps_[index].size()) continue;
    return MakeError(ErrorKind::kInvalid, "the schedule does not end: rank " +
                                              std::to_string(index / lanes) + ", lane " +
                                              std::to_string(index % lanes) + " waits at step " +
                                              std::to_string(next_[index]));
  }
  const bool left = std::ranges::any_of(queues_, [](const auto& queue) { return !queue.empty(); });
  if (left) return MakeError(ErrorKind::kInvalid, "the schedule leaves messages that nobody takes");
  return {};
}

bool KernelTrace::MayRun(uint32_t rank, uint32_t lane, const Step& step) {
  const uint32_t lanes = schedule_.facts().lanes;
  for (uint32_t other = 0; other < lanes; ++other) {
    const size_t index = static_cast<size_t>(rank) * lanes + other;
    if (other != lane && (step.after >> other & 1) != 0 && next_[index] < steps_[index].size()) {
      return false;
    }
  }
  bool here = true;
  ForEachSource(step, rank, [&](uint32_t peer) {
    here = here && !queues_[LinkOf(peer, rank, step.channel)].empty();
  });
  return here;
}

void KernelTrace::RunStep(uint32_t rank, uint32_t lane, const Step& step) {
  TracedStep out;
  out.step.own_chunk = step.src_chunk;
  out.step.stored_chunk = step.dst_chunk;
  out.step.count = step.count;
  out.step.after = step.after & ~(1U << lane);
  ChooseForms(rank, step, out.step);
  Connect(rank, step, out);
  lanes_[static_cast<size_t>(rank) * schedule_.facts().lanes + lane].push_back(std::move(out));
}

/// The same rules as for the host executor's lanes (schedule_lane.cc).
void KernelTrace::ChooseForms(uint32_t rank, const Step& step, KernelStep& out) {
  const uint32_t chunks = schedule_.facts().chunks;
  const bool before = (step.flags & schedule::kPrescaleOwn) != 0;
  const bool completes = (step.flags & schedule::kPostscale) != 0;
  bool own = false;  // partial
  if (rules_.reduces && step.src == Buffer::kScratch) own = true;
  if (rules_.reduces && step.src == Buffer::kOutput) {
    own = !finished_[{rank, step.src_chunk % chunks}];
  }
  bool received = false;
  bool result = false;
  if (rules_.reduces && ReducesWhatItReceives(step)) {
    received = (step.flags & schedule::kPrescaleReceived) == 0;
  }
  if (rules_.reduces && !completes) {
    if (step.op == Op::kSend) {
      result = before || own;
    } else if (step.op == Op::kCopy || ReducesWhatItReceives(step)) {
      result = true;
    } else if (step.dst == Buffer::kScratch) {
      received = result = true;  // sums that only pass through here
    }
  }
  out.own = MemoryOf(step.src);
  out.stored = MemoryOf(step.dst);
  if (out.own == Memory::kOutput && own && rules_.apart) out.own = Memory::kApart;
  if (out.stored == Memory::kOutput && result && rules_.apart) out.stored = Memory::kApart;
  if (step.dst == Buffer::kOutput) {
    for (uint32_t k = 0; k < step.count; ++k) {
      finished_[{rank, (step.dst_chunk + k) % chunks}] = !result;
    }
  }
  uint32_t flags = 0;
  if (own) flags |= kOwnPartial;
  if (before) flags |= kOwnRaw;
  if (received) flags |= kReceivedPartial;
  if ((step.flags & schedule::kPrescaleReceived) != 0) flags |= kReceivedRaw;
  if (result) flags |= kResultPartial;
  out.flags = static_cast<uint8_t>(flags);
  const bool as_it_is = own == result || !rules_.apart;
  if (step.op == Op::kSend) {
    out.action = !before || (as_it_is && !rules_.scales) ? Action::kNothing : Action::kCombine;
  } else if (step.src == Buffer::kNone || (step.op == Op::kCopy && !rules_.reduces)) {
    out.action = Action::kCopy;
  } else {
    out.action = Action::kCombine;
  }
}

void KernelTrace::Connect(uint32_t rank, const Step& step, TracedStep& out) {
  std::vector<uint32_t> peers;
  ForEachSource(step, rank, [&](uint32_t peer) { peers.push_back(peer); });
  std::ranges::sort(peers);
  for (const uint32_t peer : peers) {
    const uint32_t link = LinkOf(peer, rank, step.channel);
    const Message message = queues_[link].front();
    queues_[link].pop_front();
    TracedStep::End& end = out.sources.emplace_back();
    end.link = link;
    end.end.peer = peer;
    end.end.memory = message.memory;
    end.end.chunk = message.chunk;
    end.end.ordinal = message.ordinal;
    if (peer < rank) ++out.step.own_position;
  }
  // The peer reads a value that is stored, or sent as it is, where it lies.
  Message message;
  if (out.step.stored != Memory::kNone) {
    message = {out.step.stored, out.step.stored_chunk, 0};
  } else if (out.step.action == Action::kNothing) {
    message = {out.step.own, out.step.own_chunk, 0};
  }
  ForEachTarget(step, rank, [&](uint32_t peer) {
    const uint32_t link = LinkOf(rank, peer, step.channel);
    TracedLink& traced = links_[link];
    message.ordinal = traced.sent++;
    queues_[link].push_back(message);
    if (message.memory == Memory::kSlot) traced.longest = std::max(traced.longest, out.step.count);
    TracedStep::End& end = out.targets.emplace_back();
    end.link = link;
    end.end.peer = peer;
    end.end.memory = message.memory;
    end.end.chunk = message.chunk;
    end.end.ordinal = message.ordinal;
  });
}

uint32_t KernelTrace::LinkOf(uint32_t from, uint32_t to, uint8_t channel) {
  const auto next = static_cast<uint32_t>(links_.size());
  const auto [found, added] = link_of_.try_emplace({from, to, channel}, next);
  if (added) {
    links_.push_back({.from = from, .to = to});
    queues_.emplace_back();
  }
  return found->second;
}

void KernelTrace::NumberCells() {
  std::vector<uint32_t> tails(schedule_.facts().ranks);
  std::vector<uint32_t> heads(tails.size());
  std::vector<uint32_t> slots(tails.size());
  for (TracedLink& link : links_) {
    link.tail = tails[link.to]++;
    link.head = heads[link.from]++;
    if (link.longest > 0) link.slot = slots[link.to]++;
  }
  for (std::vector<TracedStep>& lane : lanes_) {
    for (TracedStep& step : lane) {
      for (std::vector<TracedStep::End>* ends : {&step.sources, &step.targets}) {
        for (TracedStep::End& end : *ends) {
          const TracedLink& link = links_[end.link];
          end.end.tail = link.tail;
          end.end.head = link.head;
          end.end.slot = link.slot;
          end.end.per_window = link.sent;
        }
      }
    }
  }
}

}  // namespace horoacc::cuda
