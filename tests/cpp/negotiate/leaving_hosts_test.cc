// Ranks of several hosts leave in any order and at once: each rank that stays learns who has left.
// Production's channels of the job, over links that are made by the first message, need an address,
// and lose what a rank that has closed did not read.
#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "base/clock.h"
#include "runtime/sets/job_channel.h"
#include "support/check.h"
#include "support/still_clock.h"

namespace horoacc::testing {
namespace {

using Bytes = std::vector<std::byte>;
using Way = std::pair<int, int>;  // from, to

struct Network {
  std::map<Way, std::deque<Bytes>> sent;
  std::set<Way> linked;  ///< in both directions
  std::set<int> closed;
  std::map<int, const RankDirectory*> directories;

  [[nodiscard]] bool IsLinked(int from, int to) const { return linked.contains({from, to}); }
  /// Whether a message can go, or be refused.
  [[nodiscard]] bool CanTry(Way way) const {
    const auto [from, to] = way;
    return IsLinked(from, to) || (!closed.contains(from) && directories.at(from)->Knows(to));
  }
  void Link(int one, int other) {
    linked.insert({one, other});
    linked.insert({other, one});
  }
  void Close(int rank) {
    closed.insert(rank);
    std::erase_if(sent, [&](const auto& each) {
      return each.first.first == rank && !IsLinked(rank, each.first.second);
    });
  }
};

class Wire final : public ControlLinks {
 public:
  Wire(Network& network, int rank) : network_(network), rank_(rank) {}
  Status Send(int peer, std::span<const std::byte> bytes) override {
    network_.sent[{rank_, peer}].emplace_back(bytes.begin(), bytes.end());
    return {};
  }
  Result<std::optional<ControlMessage>> Receive() override {
    return std::exchange(arriving, std::nullopt);
  }
  [[nodiscard]] std::vector<int> peers() const override {
    std::vector<int> ranks;
    for (const auto& [from, to] : network_.linked) {
      if (from == rank_ && !(network_.closed.contains(to) && !network_.sent.contains({to, from})))
        ranks.push_back(to);
    }
    return ranks;
  }
  [[nodiscard]] bool HasUnsent() override {
    return std::ranges::any_of(network_.sent, [this](const auto& each) {
      const auto [from, to] = each.first;
      const bool refused = network_.closed.contains(to) && network_.directories[from]->Knows(to);
      return from == rank_ && !network_.IsLinked(from, to) && !refused &&
             !network_.directories[from]->HasDeparted({Departure::kJob, to});
    });
  }
  [[nodiscard]] int WaitFd() const override { return -1; }
  [[nodiscard]] const char* kind() const override { return "model"; }
  [[nodiscard]] uint64_t messages_sent() const override { return 0; }
  [[nodiscard]] uint64_t bytes_sent() const override { return 0; }

  std::optional<ControlMessage> arriving;

 private:
  Network& network_;
  const int rank_;
};

class Job {
 public:
  Job(const std::vector<int>& hosts, uint64_t seed) : random_(seed) {
    for (const int ranks : hosts) host_of_.insert(host_of_.end(), ranks, Size());
    memories_.resize(Size());
    for (int rank = 0; rank < Size(); ++rank) {
      if (host_of_[rank] == rank) {
        memories_[rank] = std::make_unique<Page[]>(RankDirectory::BytesFor(Size()) / 64 + 1);
        directories_.push_back(std::make_unique<RankDirectory>(
            reinterpret_cast<std::byte*>(memories_[rank].get()), Size()));
      }
      network_.directories[rank] = directories_.back().get();
    }
    for (int rank = 0; rank < Size(); ++rank) StartRank(rank);
  }

  [[nodiscard]] int Size() const { return static_cast<int>(host_of_.size()); }

  /// The ranks leave, some while nothing of the others has arrived. Returns how many of them waited
  /// in vain until the limit: for the address of one that has left, of which nobody knew it.
  int Leave(std::set<int> leaving) {
    const std::set<int> all = leaving;
    int limits = 0;
    for (int still = 0; still < 6;) {
      bool any = false;
      for (int turn = 0; turn < 4 * Size(); ++turn) any |= Act(leaving);
      still = any || !leaving.empty() ? 0 : still + 1;
      StillClock() += kSecond;
      if (still != 3) continue;
      for (const int rank : all) {
        if (!network_.closed.contains(rank)) network_.Close(rank), ++limits;
      }
    }
    return limits;
  }

  /// A rank that stays and does not know of one that has left, or takes one for gone that stays.
  [[nodiscard]] std::string Wrong(const std::set<int>& left) const {
    for (int rank = 0; rank < Size(); ++rank) {
      for (int other = 0; other < Size() && !left.contains(rank); ++other) {
        if (ranks_[rank]->channel->HasLeft(other) != left.contains(other))
          return ": rank " + std::to_string(rank) + " of rank " + std::to_string(other);
      }
    }
    return "";
  }

 private:
  struct alignas(64) Page {
    std::byte bytes[64] = {};
  };
  struct Rank {
    Rank(Network& network, int rank) : wire(network, rank) {}
    Wire wire;
    std::unique_ptr<ControlMux> mux;
    std::unique_ptr<JobChannel> channel;
  };

  void StartRank(int rank) {
    const RankDirectory& directory = *network_.directories[rank];
    RankAddresses address;
    address.control = ResolveAddress("127.0.0.1:9").value().front();
    const TreeNeighbours next = NeighboursOf(host_of_, static_cast<uint32_t>(rank));
    for (const auto& ranks : {next.above(), next.below()}) {
      for (const uint32_t other : ranks) {
        network_.Link(rank, static_cast<int>(other));
        directory.Put(static_cast<int>(other), address);
      }
    }
    directory.Put(rank, address);
    network_.directories[0]->Put(rank, address);
    const HostOrder order(host_of_);
    for (uint32_t place = 0; place < std::min(order.hosts(), kRootsKnown); ++place)
      directory.Put(static_cast<int>(order.members(place).front()), address);
    ranks_.push_back(std::make_unique<Rank>(network_, rank));
    Rank& made = *ranks_.back();
    made.mux = std::make_unique<ControlMux>(made.wire, [](int) { return true; });
    std::vector<int> locals;
    for (int other = 0; other < Size(); ++other) {
      if (host_of_[other] == host_of_[rank]) locals.push_back(other);
    }
    made.channel = std::make_unique<JobChannel>(
        host_of_, JobChannel::Surroundings{.rank = rank,
                                           .locals = locals,
                                           .mux = made.mux.get(),
                                           .directory = &directory,
                                           .aborted = [](const Error&) { CHECK(false); },
                                           .stack = [] { return ""; },
                                           .reading = {},
                                           .ring_host = [] {},
                                           .wake_coordinator = [] {}});
  }

  bool Act(std::set<int>& leaving) {
    const int rank = static_cast<int>(random_() % Size());
    if (random_() % 2 == 0) return Deliver();
    if (network_.closed.contains(rank)) return false;
    JobChannel& channel = *ranks_[rank]->channel;
    if (leaving.contains(rank) && random_() % 4 == 0 &&
        (random_() % 8 == 0 || !channel.SpeaksForOthers())) {
      leaving.erase(rank);
      departed_.insert(rank);
      channel.Depart();
      return true;
    }
    channel.Progress();
    if (!departed_.contains(rank) || channel.AwaitsFarewell()) return false;
    network_.Close(rank);
    return true;
  }

  // A message of some way, in the order of that way.
  bool Deliver() {
    std::vector<Way> ways;
    for (const auto& [way, messages] : network_.sent) {
      if (network_.CanTry(way)) ways.push_back(way);
    }
    if (ways.empty()) return false;
    const Way way = ways[random_() % ways.size()];
    const auto [from, to] = way;
    Bytes bytes = std::move(network_.sent[way].front());
    network_.sent[way].pop_front();
    const bool lost = network_.closed.contains(to);
    if (lost || network_.sent[way].empty()) network_.sent.erase(way);
    if (lost) return true;
    network_.Link(from, to);
    ranks_[to]->wire.arriving = {from, std::move(bytes)};
    CHECK(ranks_[to]->mux->Pump().ok());
    return true;
  }

  std::mt19937_64 random_;
  std::vector<int> host_of_;
  std::vector<std::unique_ptr<Page[]>> memories_;
  std::vector<std::unique_ptr<RankDirectory>> directories_;
  Network network_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::set<int> departed_;
};

TEST(who_stays_learns_who_has_left) {
  const std::vector<std::vector<int>> jobs = {
      {1, 1, 1}, {1, 1, 1, 1, 1, 1}, {2, 1, 2, 3}, std::vector<int>(22, 1), std::vector<int>(9, 2)};
  for (const std::vector<int>& hosts : jobs) {
    int limits = 0;
    for (uint64_t seed = 0; seed < 200; ++seed) {
      Job job(hosts, seed);
      std::mt19937_64 random(seed);
      std::set<int> left;
      const uint64_t of_ten = 1 + random() % 9;
      for (int rank = 0; rank < job.Size(); ++rank) {
        if (random() % 10 < of_ten) left.insert(rank);
      }
      limits += job.Leave(left);
      const std::string wrong = job.Wrong(left);
      if (!wrong.empty()) check::Fail(__FILE__, __LINE__, "seed " + std::to_string(seed) + wrong);
    }
    std::printf("  %2zu hosts: %d ranks waited in vain\n", hosts.size(), limits);
  }
}

}  // namespace
}  // namespace horoacc::testing
