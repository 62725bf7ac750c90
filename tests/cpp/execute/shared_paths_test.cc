// The data paths of one host by themselves, with ranks as threads: what one rank writes and another
// reads is ordered by the paths' own atomics, and by nothing else. So ThreadSanitizer sees an order
// that is too weak (tests/aarch64/weaken_orders.py).
#include <cstring>
#include <thread>
#include <vector>

#include "execute/shared_memory/direct_slices.h"
#include "execute/shared_memory/exchange.h"
#include "execute/shared_memory/two_phase.h"
#include "support/check.h"
#include "transport/bootstrap/inproc.h"
#include "transport/data/shm/shm_data.h"

using namespace horoacc;

namespace {

constexpr uint32_t kRanks = 3;
constexpr size_t kMemory = 8 << 20;
constexpr size_t kCount = 20000;  // float32: 20 windows
constexpr float kSum = 6;         // of the ranks' numbers

/// What the ranks of a process set share for one decision.
class Host {
 public:
  Host() {
    for (uint32_t r = 0; r < kRanks; ++r) {
      memory_.push_back(Make(kMemory));
      base_.push_back(memory_[r].data());
      arenas_.push_back(std::make_unique<Arena>(base_[r], kMemory, memory_[r].fd(), 0));
    }
    slot().Reset(kRanks);
  }
  [[nodiscard]] ExecSlot& slot() { return *reinterpret_cast<ExecSlot*>(control_.data()); }
  [[nodiscard]] Arena& arena(uint32_t rank) { return *arenas_[rank]; }
  [[nodiscard]] SetContext Context(uint32_t me) {
    SetContext context;
    context.me = me;
    context.ranks = kRanks;
    context.memory = base_;
    for (uint32_t r = 0; r < kRanks; ++r) context.present.push_back(r);
    context.staging = arenas_[me].get();
    context.free_staging = [](void*) {};
    context.window_bytes = 4096;
    context.window_depth = 2;
    context.ring_others = [](bool) {};
    return context;
  }

 private:
  static Segment Make(size_t bytes) {
    Result<Segment> made = Segment::Create("shared_paths_test", bytes);
    CHECK(made.ok());
    return std::move(made.value());
  }
  std::vector<Segment> memory_;
  std::vector<std::byte*> base_;
  std::vector<std::unique_ptr<Arena>> arenas_;
  Segment control_ = Make(ExecSlot::BytesFor(kRanks));
};

template <typename Body>
void OnRanks(uint32_t ranks, const Body& body) {
  std::vector<std::jthread> threads;
  for (uint32_t r = 0; r < ranks; ++r) threads.emplace_back([&body, r] { body(r); });
}

void Drive(Execution& execution) {
  while (!execution.finished() || !execution.complete()) {
    CHECK(!execution.failed());
    if (!execution.Advance()) std::this_thread::yield();
  }
}

void CheckSums(const float* sums) {
  for (size_t k = 0; k < kCount; ++k) CHECK_EQ(sums[k], kSum);
}

}  // namespace

TEST(two_phases) {
  Host host;
  OnRanks(kRanks, [&](uint32_t rank) {
    const SetContext context = host.Context(rank);
    const std::vector<float> input(kCount, static_cast<float>(rank + 1));
    std::vector<float> output(kCount);
    ReducePiece piece;
    piece.count = kCount;
    piece.input = input.data();
    piece.output = output.data();
    TwoPhaseWindows windows(context, host.slot(), {piece});
    Drive(windows);
    CheckSums(output.data());
  });
}

TEST(exchanges) {
  Host host;
  OnRanks(kRanks, [&](uint32_t rank) {
    const SetContext context = host.Context(rank);
    const std::vector<float> input(kCount, static_cast<float>(rank + 1));
    std::vector<float> output(kCount);
    ExchangePiece piece;
    piece.bytes.assign(kRanks, kCount * sizeof(float));
    piece.shared.assign(kRanks, nullptr);
    piece.input = reinterpret_cast<const std::byte*>(input.data());
    piece.shards.push_back({.last = kCount, .to = reinterpret_cast<std::byte*>(output.data())});
    Exchange exchange(context, host.slot(), {piece});
    Drive(exchange);
    CheckSums(output.data());
  });
}

TEST(direct_slices) {
  Host host;
  std::vector<float*> vectors;
  for (uint32_t r = 0; r < kRanks; ++r) {
    vectors.push_back(static_cast<float*>(host.arena(r).Allocate(kCount * sizeof(float))));
    std::fill_n(vectors[r], kCount, static_cast<float>(r + 1));
  }
  OnRanks(kRanks, [&](uint32_t rank) {
    const SetContext context = host.Context(rank);
    ReduceList list;
    void** const pointers = list.MakePointers(2 * kRanks);
    for (uint32_t r = 0; r < kRanks; ++r) pointers[r] = pointers[kRanks + r] = vectors[r];
    ReducePiece piece;
    piece.count = kCount;
    piece.sources = const_cast<const void**>(pointers);
    piece.destinations = pointers + kRanks;
    list.pieces.push_back(piece);
    DirectSlices slices(context, host.slot(), std::move(list));
    Drive(slices);
    CheckSums(vectors[rank]);
    std::fill_n(vectors[rank], kCount, 0.0F);  // no peer reads it any more
  });
}

TEST(links) {
  constexpr int kMessages = 50;
  constexpr size_t kBytes = 4000;
  auto hub = InprocHub::Create(2, 1 << 20, kMemory);
  CHECK(hub.ok());
  OnRanks(2, [&](uint32_t rank) {
    const HostShare share = hub.value()->MakeHostShare(static_cast<int>(rank));
    Arena arena(share.memory[rank].data(), kMemory, share.memory[rank].fd(), 0);
    Doorbells bells(reinterpret_cast<Doorbell*>(share.control.data()), share.wake);
    auto links = MakeShmDataLinks({.share = &share,
                                   .control = share.control.data() + (1 << 16),
                                   .arena = &arena,
                                   .doorbells = &bells});
    CHECK(links.ok());
    LinkSpec spec;
    spec.collective = {1, 1};
    spec.peer = 1 - static_cast<int>(rank);
    spec.slots = 2;
    spec.slot_bytes = kBytes;
    auto out = links.value()->OpenSend(spec);
    auto in = links.value()->OpenReceive(spec);
    CHECK(out.ok() && in.ok());
    std::vector<std::byte> data(kBytes);
    const std::span<const std::byte> piece(data);
    int sent = 0, expected = 0, taken = 0;
    while (sent < kMessages || taken < kMessages || out.value()->taken() < kMessages) {
      CHECK(links.value()->Progress().ok());
      for (; expected < std::min(taken + 2, kMessages); ++expected)
        CHECK(in.value()->Expect(kBytes, {}).ok());
      if (sent < kMessages && out.value()->HasRoom()) {
        std::memset(data.data(), sent++, kBytes);
        CHECK(out.value()->Post({&piece, 1}).ok());
      }
      const auto arrival = in.value()->Arrived();
      CHECK(arrival.ok());
      if (arrival.value() == nullptr) {
        std::this_thread::yield();
        continue;
      }
      CHECK_EQ(static_cast<int>(arrival.value()->pieces[0].back()), taken);
      in.value()->Release();
      ++taken;
    }
  });
}
