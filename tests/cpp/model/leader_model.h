#pragma once
// Mode L (execute/cuda/host/leader_run.h): every rank packs, the leader's kernel reduces all
// buffers to all, every rank unpacks. Events say what has run on a stream, counts on cards which
// event may be asked for. Hosts wait; streams never do.
#include "model/explore.h"

namespace horoacc::model {

enum class LeaderFault {
  kNone,
  kAsksEarly,     ///< asks a rank's event before that has said that it was recorded
  kOneOfThem,     ///< reduces when one of the others has packed
  kTellsEarly,    ///< says that the result is there once the kernel was launched
  kGoesOnEarly,   ///< enqueues what follows a window before its result is there
  kWaitsForDead,  ///< goes on when the job is over
};

/// Processes: the ranks' hosts, then their streams. Rank 0 leads.
template <uint32_t kRanks>
class LeaderModel {
 public:
  struct Host {
    uint8_t pc = 0;
    uint8_t peer = 0;
    uint8_t window = 1;
  };
  struct Stream {
    uint8_t enqueued = 0;  ///< of pack, reduce (only the leader's does anything), unpack, pack, ...
    uint8_t done = 0;
    uint8_t at = 0;  ///< buffers that a reduction is through with
  };
  struct State {
    uint8_t buffer[kRanks] = {};    ///< twice the window, + 1 if reduced
    uint8_t recorded[kRanks] = {};  ///< work on the stream when the packed event was recorded
    uint8_t packed[kRanks] = {};    ///< on the cards
    uint8_t reduced = 0;
    Host host[kRanks];
    Stream stream[kRanks];
    uint8_t dead = 0;  ///< the last rank is, with its stream
  };

  LeaderModel(uint8_t windows, bool dies, LeaderFault fault)
      : windows_(windows), dies_(dies), fault_(fault) {}
  [[nodiscard]] State initial() const { return {}; }
  [[nodiscard]] uint32_t processes() const { return 2 * kRanks; }
  [[nodiscard]] bool Done(const State& s) const {
    for (uint32_t r = 0; r < kRanks; ++r) {
      if (r == kRanks - 1 && s.dead) continue;
      if (s.host[r].pc != kOver || s.stream[r].done != s.stream[r].enqueued) return false;
    }
    return true;
  }

  Outcome Step(State& s, uint32_t process, const char** wrong) const {
    const uint32_t rank = process % kRanks;
    if (rank == kRanks - 1) {
      if (s.dead) return Outcome::kBlocked;
      if (dies_ && process >= kRanks && s.host[rank].pc == kAwait) {
        s.dead = 1;  // in the middle of a window
        return Outcome::kMoved;
      }
    }
    return process < kRanks ? Lead(s, rank) : Run(s, rank, wrong);
  }

 private:
  enum Place : uint8_t { kPack, kRecord, kTell, kGather, kReduce, kReduced, kAwait, kOver };
  enum Work : uint8_t { kPacking, kReducing, kUnpacking };

  static bool HasRun(const Stream& stream, uint8_t work) { return stream.done >= work; }

  Outcome Lead(State& s, uint32_t me) const {
    Host& host = s.host[me];
    Stream& stream = s.stream[me];
    if (host.pc == kOver) return Outcome::kBlocked;
    if (s.dead && fault_ != LeaderFault::kWaitsForDead) {
      host.pc = kOver;  // the run is dropped: nothing more is enqueued
      return Outcome::kMoved;
    }
    switch (host.pc) {
      case kPack:
        ++stream.enqueued;
        host.pc = kRecord;
        return Outcome::kMoved;
      case kRecord:
        s.recorded[me] = stream.enqueued;
        host.pc = kTell;
        return Outcome::kMoved;
      case kTell:
        s.packed[me] = host.window;
        host.pc = me == 0 ? kGather : kAwait;
        if (fault_ == LeaderFault::kGoesOnEarly && me != 0 && host.window < windows_) {
          stream.enqueued += 3;  // up to the next window's packing
          s.recorded[me] = stream.enqueued;
        }
        return Outcome::kMoved;
      case kGather:
        return Gather(s, host);
      case kReduce:
        ++stream.enqueued;
        host.pc = kReduced;
        return Outcome::kMoved;
      case kReduced:
        if (!HasRun(stream, stream.enqueued) && fault_ != LeaderFault::kTellsEarly)
          return Outcome::kBlocked;
        s.reduced = host.window;
        host.pc = kAwait;
        return Outcome::kMoved;
      default:  // kAwait
        if (s.reduced < host.window) return Outcome::kBlocked;
        stream.enqueued = static_cast<uint8_t>(3 * host.window);
        host.pc = host.window++ == windows_ ? kOver : kPack;
        return Outcome::kMoved;
    }
  }

  Outcome Gather(State& s, Host& host) const {
    const bool told = s.packed[host.peer] >= host.window;
    const bool run = HasRun(s.stream[host.peer], s.recorded[host.peer]);
    if (fault_ == LeaderFault::kAsksEarly ? !run : !(told && run)) return Outcome::kBlocked;
    const bool enough = fault_ == LeaderFault::kOneOfThem && host.peer == 1;
    if (++host.peer == kRanks || enough) {
      host.peer = 0;
      host.pc = kReduce;
    }
    return Outcome::kMoved;
  }

  Outcome Run(State& s, uint32_t me, const char** wrong) const {
    Stream& stream = s.stream[me];
    if (stream.done == stream.enqueued) return Outcome::kBlocked;
    const auto window = static_cast<uint8_t>(stream.done / 3 + 1);
    const auto packed = static_cast<uint8_t>(2 * window);
    const auto reduced = static_cast<uint8_t>(packed + 1);
    const auto work = static_cast<Work>(stream.done % 3);
    if (work == kReducing && me == 0) {
      uint8_t& there = s.buffer[stream.at % kRanks];
      if (stream.at >= kRanks) {
        there = reduced;
      } else if (there != packed && !s.dead) {
        *wrong = "reduces what is not packed";
      }
      if (++stream.at < 2 * kRanks) return Outcome::kMoved;
      stream.at = 0;
    } else if (work == kPacking) {
      s.buffer[me] = packed;
    } else if (work == kUnpacking && s.buffer[me] != reduced && !s.dead) {
      *wrong = "unpacks what is not reduced";
    }
    ++stream.done;
    return Outcome::kMoved;
  }

  const uint8_t windows_;
  const bool dies_;
  const LeaderFault fault_;
};

}  // namespace horoacc::model
