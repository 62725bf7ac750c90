#pragma once
// The ranks of one process set on several hosts, without engines: a test moves each rank by hand
// and carries the messages between the leaders.
#include <algorithm>
#include <bit>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "negotiate/multi_host/multi_host_controller.h"
#include "support/segment_views.h"
#include "support/tap.h"
#include "transport/memory/arena.h"

namespace horoacc::testing {

class MultiHostViews {
 public:
  static constexpr uint32_t kMostIds = 16;

  /// `hosts`: ranks of each.
  explicit MultiHostViews(std::vector<int> hosts, Settings settings = {}, bool grants = false)
      : hosts_(std::move(hosts)), settings_(std::move(settings)), grants_(grants) {
    for (const int ranks : hosts_) {
      auto hub =
          InprocHub::Create(ranks, ControlSegment::BytesFor(static_cast<uint32_t>(ranks)), 1 << 20);
      CHECK(hub.ok());
      hubs_.push_back(std::move(hub).value());
      for (int local = 0; local < ranks; ++local)
        memories_.push_back(std::make_unique<Memory>(hubs_.back()->MakeHostShare(local)));
    }
    MakeRanks();
  }
  ~MultiHostViews() { DropRanks(); }
  MultiHostViews(const MultiHostViews&) = delete;
  MultiHostViews& operator=(const MultiHostViews&) = delete;

  /// The set as at its beginning, in the same memory. It may have used the first or the last
  /// kMostIds ids of names, and as many of unnamed calls.
  void StartAgain() {
    DropRanks();
    MakeRanks();
  }

  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] SegmentRank& operator[](int rank) const { return ranks_[rank]->segment; }
  [[nodiscard]] Controller& controller(int rank) const { return *ranks_[rank]->segment.controller; }
  [[nodiscard]] Tap& tap(int rank) const { return ranks_[rank]->tap; }
  [[nodiscard]] ControlMux& mux(int rank) const { return ranks_[rank]->mux; }
  [[nodiscard]] Arena& arena(int rank) const { return memories_[rank]->arena; }
  [[nodiscard]] int LeaderOf(int rank) const { return ranks_[rank]->leader; }

  /// The rank submits `name`: four numbers in its shared memory.
  Status Announce(int rank, const std::string& name, Collective collective,
                  const Proposal& proposal = {}) {
    SegmentRank& segment = ranks_[rank]->segment;
    HA_ASSIGN(const SetSegment::NamedId id, segment.control->Lookup(name));
    const TensorKey key = segment.WriteRow(id.id, collective, memories_[rank]->numbers);
    segment.control->row(segment.context.me, key.id, key.generation).proposal = proposal;
    const auto announced = segment.controller->Announce({key.id, key.generation, id.id_version});
    return announced.ok() ? Status() : Status(announced.error());
  }

  Status AnnounceUnnamed(int rank, uint64_t number, Collective collective) {
    SegmentRank& segment = ranks_[rank]->segment;
    const uint32_t id = kNamedIds + static_cast<uint32_t>(number % kUnnamedIds);
    const TensorKey key = segment.WriteRow(id, collective, memories_[rank]->numbers);
    segment.control->row(segment.context.me, id, key.generation).number = number;
    const auto announced = segment.controller->Announce({key.id, key.generation, 0});
    return announced.ok() ? Status() : Status(announced.error());
  }

  /// A message for the rank.
  Status Give(int rank, int source, Bytes bytes) {
    ranks_[rank]->tap.arriving.push_back({source, std::move(bytes)});
    const auto pumped = ranks_[rank]->mux.Pump();
    return pumped.ok() ? Status() : Status(pumped.error());
  }

  /// Moves all ranks, and delivers everything that is sent, until nothing is on its way. Returns
  /// all of it: its receiver, and the message with its source.
  std::vector<std::pair<int, ControlMessage>> Deliver() {
    std::vector<std::pair<int, ControlMessage>> carried;
    for (bool any = true; std::exchange(any, false);) {
      for (int rank = 0; rank < size(); ++rank) {
        CHECK(controller(rank).Pump().ok());
        for (ControlMessage& message : std::exchange(tap(rank).sent, {})) {
          any = true;
          const int receiver = message.source;
          carried.push_back({receiver, {rank, message.bytes}});
          CHECK(Give(receiver, rank, std::move(message.bytes)).ok());
        }
      }
    }
    return carried;
  }

  /// The next decision of the rank, carried out.
  std::optional<Decision> Carry(int rank) {
    auto next = controller(rank).Next();
    if (!next.ok() || !next.value()) return std::nullopt;
    (void)controller(rank).Finish(*next.value());
    return std::move(*next.value());
  }

 private:
  /// What a rank shows the others of its host; it stays when the set starts again.
  struct Memory {
    explicit Memory(const HostShare& share)
        : arena(share.memory[share.local_rank].data(), share.memory[share.local_rank].size(),
                share.memory[share.local_rank].fd(), 0) {
      auto* const place = static_cast<float*>(arena.Allocate(4 * sizeof(float)));
      for (int k = 0; k < 4; ++k) place[k] = static_cast<float>(k + 1);
      numbers = arena.OffsetOf(place);
    }
    Arena arena;
    uint64_t numbers = 0;
  };
  struct Rank {
    Rank(const HostShare& share, const Settings& settings)
        : segment(share, settings, [](uint32_t) { return true; }),
          mux(tap, [](int) { return false; }) {}
    SegmentRank segment;
    Tap tap;
    ControlMux mux;
    int leader = 0;
  };

  void MakeRanks() {
    std::vector<int> host_of;
    std::vector<int> everybody;
    for (size_t host = 0; host < hosts_.size(); ++host)
      host_of.insert(host_of.end(), hosts_[host], static_cast<int>(host));
    for (int rank = 0; rank < std::ssize(host_of); ++rank) everybody.push_back(rank);
    const std::vector<uint32_t> shape(hosts_.begin(), hosts_.end());
    const bool sums = shape[0] > 1 && std::has_single_bit(shape[0]) &&
                      std::ranges::adjacent_find(shape, std::ranges::not_equal_to()) == shape.end();
    const EagerRule eager(shape, sums, settings_);
    for (size_t host = 0; host < hosts_.size(); ++host) {
      const int ranks = hosts_[host];
      const int first = size();
      for (int local = 0; local < ranks; ++local) {
        HostShare share = hubs_[host]->MakeHostShare(local);
        share.ranks.assign(everybody.begin() + first, everybody.begin() + first + ranks);
        auto& rank = ranks_.emplace_back(std::make_unique<Rank>(share, settings_));
        rank->leader = first;
        Arena* const arena = &memories_[first + local]->arena;
        const Leader::Place place{0,
                                  everybody,
                                  TreeOver(host_of, static_cast<uint32_t>(first + local)),
                                  settings_.fusion_threshold,
                                  false,
                                  grants_,
                                  false,
                                  nullptr};
        rank->segment.controller = std::make_unique<MultiHostController>(
            rank->mux, place, *rank->segment.control, rank->segment.context,
            rank->segment.doorbells, eager,
            NoteMemory{
                [arena](size_t bytes) { return static_cast<std::byte*>(arena->Allocate(bytes)); },
                [arena](void* block) { arena->Free(block); }});
      }
    }
  }
  void DropRanks() {
    for (const auto& rank : ranks_) {
      rank->segment.controller.reset();
      if (rank->segment.context.me == 0) Wipe(*rank->segment.control);
    }
    ranks_.clear();
  }

  /// Zeroes what a short script uses of a set's memory. Its pages stay: to fault them in again
  /// would take longer than the script.
  static void Wipe(SetSegment& set) {
    (void)set.outbox().TakeAll();
    const auto zero = [](void* from, const void* to) {
      std::memset(
          from, 0,
          static_cast<size_t>(static_cast<const char*>(to) - static_cast<const char*>(from)));
    };
    for (const uint32_t first : {0u, kNamedIds - kMostIds, kNamedIds}) {
      zero(&set.id(first), &set.id(first + kMostIds));
      for (uint32_t r = 0; r < set.ranks(); ++r)
        zero(&set.row(r, first, 0), &set.row(r, first + kMostIds, 0));
    }
    zero(&set.cursor(0), &set.cursor(set.ranks()));
    zero(&set.header(), &set.header() + 1);
    zero(&set.log_word(0) + kLogWords, set.backlog());  // the names
    PlanState& plan = set.plan();
    zero(plan.buckets.data(), plan.buckets.data() + kMostIds);
    *plan.version = 0;
  }

  const std::vector<int> hosts_;
  const Settings settings_;
  const bool grants_;
  std::vector<std::shared_ptr<InprocHub>> hubs_;
  std::vector<std::unique_ptr<Memory>> memories_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace horoacc::testing
