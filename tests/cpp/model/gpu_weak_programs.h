#pragma once
// What ranks on GPUs tell each other, as programs over weak memory (weak_memory.h): by the steps of
// mode S, mode L's code for hosts, and mode K's for blocks (direct_lane.h), each with the orders
// that its words, counts, events and launches have. Links of slots are rings (weak_programs.h), and
// words that carry their flag (low_latency.h) order nothing.
#include <array>
#include <functional>

#include "execute/cuda/host/leader_steps.h"
#include "execute/cuda/host/stream_steps.h"
#include "execute/cuda/host/window_line.h"
#include "execute/cuda/persistent/direct_lane.h"
#include "execute/cuda/persistent/kernel_compiler.h"
#include "model/weak_programs.h"

namespace horoacc::model {

inline constexpr const char* kUnpacksOther = "unpacks another sum";

constexpr uint8_t GivenBy(uint32_t rank, uint32_t window) {
  return static_cast<uint8_t>(1 + rank + 4 * window);
}
constexpr uint8_t SumOfRanks(uint32_t ranks, uint32_t window) {
  uint8_t sum = 0;
  for (uint32_t r = 0; r < ranks; ++r) sum += GivenBy(r, window);
  return sum;
}

/// Mode S: a thread is a stream of a rank, that packs or that reduces. A write of a word releases
/// (peers.cu leaves its barrier as it is), and a wait acquires. What a host has seen of an event
/// holds for what it launches next.
template <uint32_t kRanks, uint32_t kWindows>
struct StreamProgram {
  static constexpr uint32_t kSlots = cuda::WindowLine::kSlots;
  static constexpr uint32_t kUsed = kWindows < kSlots ? kWindows : kSlots;
  static constexpr uint32_t kWords = kRanks * kRanks * kUsed;
  static constexpr WeakShape kShape{.threads = 2 * kRanks,
                                    .atomics = 2 * kWords + kRanks,
                                    .plain = kRanks * kRanks * kUsed,
                                    .kept = 2};
  static constexpr uint32_t kMostAccesses = kWindows * (5 * kRanks + 2);
  enum : uint32_t { kPacked, kReduced = kWords, kEnded = 2 * kWords };

  /// A word that a rank has for another, or a shard of its buffer.
  static constexpr uint32_t At(uint32_t rank, uint32_t other, uint32_t window) {
    return (rank * kRanks + other) * kUsed + window % kUsed;
  }

  template <typename Ops>
  bool Run(uint32_t thread, Ops& ops) const {
    const uint32_t me = thread % kRanks;
    if (thread >= kRanks) {
      for (uint8_t n = 1; n <= kWindows; ++n) {
        for (const cuda::StreamStep step : cuda::kStreamSteps) Go(step, me, n, ops);
        ops.Store(kEnded + me, n, kRelease);
      }
      return true;
    }
    for (uint8_t n = 1; n <= kWindows; ++n) {
      if (n > kSlots) Unpack(me, static_cast<uint8_t>(n - kSlots), ops);
      for (uint32_t shard = 0; shard < kRanks; ++shard)
        ops.WritePlain(At(me, shard, n), GivenBy(me, n));
      for (uint32_t r = 0; r < kRanks; ++r) ops.Store(kPacked + At(r, me, n), n, kRelease);
    }
    for (uint8_t n = kWindows - kUsed + 1; n <= kWindows; ++n) Unpack(me, n, ops);
    return true;
  }

 private:
  template <typename Ops>
  static void Unpack(uint32_t me, uint8_t n, Ops& ops) {
    ops.Await(kEnded + me, kAcquire, [n](uint8_t ended) { return ended >= n; });
    for (uint32_t shard = 0; shard < kRanks; ++shard)
      ops.Check(ops.ReadPlain(At(me, shard, n)) == SumOfRanks(kRanks, n), kUnpacksOther);
  }

  template <typename Ops>
  static void Go(cuda::StreamStep step, uint32_t me, uint8_t n, Ops& ops) {
    using Step = cuda::StreamStep;
    const uint32_t words = step == Step::kAwaitPacked ? kPacked : kReduced;
    uint8_t sum = 0;
    for (uint32_t r = 0; r < kRanks; ++r) {
      if (step == Step::kReduceShard) {
        sum += ops.ReadPlain(At(r, me, n));
      } else if (step == Step::kTellReduced) {
        ops.Store(words + At(r, me, n), n, kRelease);
      } else {
        ops.Await(words + At(me, r, n), kAcquire, [n](uint8_t told) { return told >= n; });
      }
    }
    if (step != Step::kReduceShard) return;
    for (uint32_t r = 0; r < kRanks; ++r) ops.WritePlain(At(r, me, n), sum);
  }
};

/// Mode L: a thread is a rank's host, which runs LeaderWindow, its stream, or the leader's stream
/// for reductions. A launch shows the GPU what the host has seen, and an event that is done shows
/// the host what the GPU has done. With one slot windows follow each other in it, and with two they
/// are in flight at once.
template <uint8_t kSlots>
struct LeaderProgram {
  static constexpr uint32_t kRanks = 2;
  static constexpr uint8_t kWindows = 2;
  static constexpr uint32_t kStreams = kRanks + 1;
  static constexpr WeakShape kShape{.threads = kRanks + kStreams,
                                    .atomics = 2 * kStreams + kRanks + 1,
                                    .plain = kRanks * kSlots,
                                    .kept = 2};
  static constexpr uint32_t kMostAccesses = 12 * kWindows;
  enum : uint32_t {
    kLaunched,  ///< by stream; the last one reduces
    kEnded = kStreams,
    kPacked = 2 * kStreams,
    kReduced = kPacked + kRanks
  };

  template <typename Ops>
  bool Run(uint32_t thread, Ops& ops) const {
    return thread < kRanks ? RunHost(thread, ops) : RunStream(thread - kRanks, ops);
  }

 private:
  /// See leader_steps.h. What is not there yet is awaited at once.
  template <typename Ops>
  struct Host {
    Ops& ops;
    const uint32_t me;
    uint8_t window = 0;
    uint8_t launches = 0;  ///< on its stream
    uint8_t packs[kWindows + 1] = {};

    void Launch() { ops.Store(kLaunched + me, ++launches, kRelease); }
    bool Await(uint32_t count, uint8_t least) {
      ops.Await(count, kAcquire, [least](uint8_t value) { return value >= least; });
      return true;
    }
    [[nodiscard]] uint32_t ranks() const { return kRanks; }
    [[nodiscard]] bool leads() const { return me == 0; }
    Result<bool> IsPacked() { return Await(kEnded + me, packs[window]); }
    Result<bool> IsReduced() { return Await(kEnded + kRanks, window); }
    void TellPacked() { ops.Store(kPacked + me, window, kRelease); }
    void TellReduced() { ops.Store(kReduced, window, kRelease); }
    bool HasTold(uint32_t rank) { return Await(kPacked + rank, window); }
    bool HasResult() { return Await(kReduced, window); }
    Status ReduceAll() {
      ops.Store(kLaunched + kRanks, window, kRelease);
      return {};
    }
  };

  /// What a stream does with windows, in the order in which its host launches it.
  template <typename Pack, typename Unpack>
  static bool EachMove(const Pack& pack, const Unpack& unpack) {
    for (uint8_t n = 1; n <= kWindows; ++n) {
      if (n > kSlots && !unpack(static_cast<uint8_t>(n - kSlots))) return false;
      if (!pack(n)) return false;
    }
    for (uint8_t n = kWindows - kSlots + 1; n <= kWindows; ++n) {
      if (!unpack(n)) return false;
    }
    return true;
  }

  template <typename Ops>
  static bool RunHost(uint32_t me, Ops& ops) {
    Host<Ops> host{ops, me};
    const auto unpack = [&](uint8_t n) {
      host.window = n;
      cuda::LeaderWindow steps;
      if (!steps.Launch(host).ok() || !cuda::LeaderWindow::IsReduced(host).ok()) return false;
      host.Launch();
      return true;
    };
    const auto pack = [&](uint8_t n) {
      host.Launch();
      host.packs[n] = host.launches;
      return true;
    };
    return EachMove(pack, unpack);
  }

  template <typename Ops>
  static bool RunStream(uint32_t me, Ops& ops) {
    const auto at = [](uint32_t rank, uint8_t n) { return rank * kSlots + n % kSlots; };
    uint8_t kernels = 0;
    const auto kernel = [&](const auto& body) {
      ++kernels;
      ops.Await(kLaunched + me, kAcquire, [&](uint8_t launched) { return launched >= kernels; });
      body();
      ops.Store(kEnded + me, kernels, kRelease);
      return true;
    };
    if (me == kRanks) {
      for (uint8_t n = 1; n <= kWindows; ++n) {
        kernel([&] {
          uint8_t sum = 0;
          for (uint32_t r = 0; r < kRanks; ++r) sum += ops.ReadPlain(at(r, n));
          for (uint32_t r = 0; r < kRanks; ++r) ops.WritePlain(at(r, n), sum);
        });
      }
      return true;
    }
    const auto pack = [&](uint8_t n) {
      return kernel([&] { ops.WritePlain(at(me, n), GivenBy(me, n)); });
    };
    const auto unpack = [&](uint8_t n) {
      return kernel(
          [&] { ops.Check(ops.ReadPlain(at(me, n)) == SumOfRanks(kRanks, n), kUnpacksOther); });
    };
    return EachMove(pack, unpack);
  }
};

}  // namespace horoacc::model

namespace horoacc::cuda {

/// Stands for an operation: says which memory a thread's part of a reduction uses.
struct TracedOp {
  const std::function<void(const CombineArgs&, const Grid&)>* combine;
};
struct TracedElement {
  using Stored = int32_t;
  using Acc = int32_t;
};

namespace {

template <>
void CombineAny<TracedElement, TracedOp>(const CombineArgs& args, const Factors&, TracedOp op,
                                         Grid grid) {
  (*op.combine)(args, grid);
}

}  // namespace
}  // namespace horoacc::cuda

namespace horoacc::model {

/// Mode K's direct allreduce, in place, between a packing and an unpacking. Rank 0's block has two
/// threads, and rank 1's has one: the third of all, each of which reduces an element. Runs
/// direct_lane.h.
struct DirectProgram {
  static constexpr uint32_t kRanks = 2;
  static constexpr uint32_t kElements = 3;  // of a buffer: two in rank 0's part
  static constexpr uint32_t kCells = 2 * kRanks;
  enum : uint32_t { kCell, kBarrier = kRanks * kCells };
  static constexpr WeakShape kShape{
      .threads = 3, .atomics = kBarrier + 1, .plain = kRanks * kElements, .kept = 2};
  static constexpr uint32_t kMostAccesses = 40;

  /// Counts that a rank has from another: inputs are ready, and results are written.
  static constexpr uint32_t CellOf(uint32_t at, uint32_t from, uint32_t phase) {
    return kCell + at * kCells + phase * kRanks + from;
  }

  DirectProgram()
      : image(
            cuda::CompileFixed(cuda::KernelKind::kDirect, kRanks,
                               {.type = DType::kInt32, .count = kRanks * kGrain / sizeof(int32_t)})
                .value()) {}

  template <typename Ops>
  bool Run(uint32_t thread, Ops& ops) const {
    const uint32_t me = thread / 2;
    const uint32_t own = thread % 2;
    const uint32_t threads = 2 - me;
    // Addresses, which nobody follows.
    static std::array<std::array<char, kRanks * kGrain>, kRanks> buffers;
    static std::array<std::array<char, kCells * cuda::kCellBytes>, kRanks> cells;
    cuda::KernelCall call{};
    for (uint32_t r = 0; r < kRanks; ++r) {
      call.input[r] = call.output[r] = buffers[r].data();
      call.workspace[r] = cells[r].data();
    }
    const auto at = [&](const char* address, uint32_t rank) {
      const auto part = static_cast<uint32_t>((address - buffers[rank].data()) / kGrain);
      return kElements * rank + 2 * part + own;
    };
    const std::function<void(const cuda::CombineArgs&, const cuda::Grid&)> combine =
        [&](const cuda::CombineArgs& args, const cuda::Grid& grid) {
          if (grid.thread != own) return;
          uint8_t sum = 0;
          for (uint32_t r = 0; r < kRanks; ++r)
            sum += ops.ReadPlain(at(args.operands.source[r], r));
          for (uint32_t r = 0; r < kRanks; ++r)
            ops.WritePlain(at(args.operands.destination[r], r), sum);
        };
    Cta<Ops> cta{ops, me, own, threads, cells[0].data()};
    for (uint32_t e = own; e < kElements; e += threads)
      ops.WritePlain(kElements * me + e, GivenBy(me, 0));
    cta.Sync();  // a kernel ends, and the next begins
    const cuda::KernelProgram program(cuda::HeaderOf(image), nullptr);
    cuda::DirectLane<cuda::TracedElement, cuda::TracedOp, Cta<Ops>>(cta, program, call, {&combine})
        .Run();
    cta.Sync();
    for (uint32_t e = own; e < kElements; e += threads) {
      const uint8_t found = ops.ReadPlain(kElements * me + e);
      ops.Check(found == SumOfRanks(kRanks, 0), kUnpacksOther);
      ops.WritePlain(kElements * me + e, 0);  // packs again
    }
    return true;
  }

 private:
  static constexpr uint32_t kGrain = cuda::kKernelGrain;

  /// See kernel_wait.h. A thread goes through what all threads of its block do, so that it knows
  /// what they have put into memory that they share, and does its own part of it.
  template <typename Ops>
  struct Cta {
    Ops& ops;
    const uint32_t me, own, threads;
    const char* const cells;
    uint32_t plays = 0;  ///< the thread
    uint8_t barriers = 0;
    cuda::CombineArgs args{};

    [[nodiscard]] uint32_t rank() const { return me; }
    [[nodiscard]] uint32_t channel() const { return 0; }
    cuda::CombineArgs& combine_args() { return args; }
    template <typename Body>
    void Each(const Body& body) {
      for (plays = 0; plays < threads; ++plays) body(cuda::Grid{0, 1, plays, threads});
    }
    void Sync() {
      if (threads == 1) return;
      const auto all = static_cast<uint8_t>(threads * ++barriers);
      ops.Modify(kBarrier, kAcqRel, [](uint8_t came) { return came + 1; });
      ops.Await(kBarrier, kAcquire, [all](uint8_t came) { return came >= all; });
    }
    bool Any(bool) {
      Sync();
      return ops.cut();
    }
    uint64_t Acquire(const uint64_t* cell) { return Look(cell, kAcquire); }
    uint64_t LoadWord(const uint64_t* cell) { return Look(cell, kRelaxed); }
    void Release(uint64_t* cell, uint64_t count) {
      if (plays == own) ops.Store(At(cell), static_cast<uint8_t>(count), kRelease);
    }
    bool GoOn(uint32_t) { return false; }  // it has been cut off
    void Report(uint64_t) const {}

   private:
    [[nodiscard]] uint32_t At(const uint64_t* cell) const {
      return kCell + static_cast<uint32_t>((reinterpret_cast<const char*>(cell) - cells) /
                                           cuda::kCellBytes);
    }
    uint64_t Look(const uint64_t* cell, std::memory_order order) {
      if (plays != own) return ~uint64_t{0};
      return ops.Await(At(cell), order, [](uint8_t count) { return count > 0; });
    }
  };

  cuda::KernelImage image;
};

}  // namespace horoacc::model
