// What control costs in a job of 1024 ranks, in messages, bytes and connections: production's
// leaders and the channel of the job, with each message carried by hand; and production's start-up,
// with the bytes that rank 0 answers.
#include <sys/resource.h>

#include <condition_variable>
#include <cstdio>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "api/hosts.h"
#include "runtime/job/agreed_settings.h"
#include "runtime/sets/job_channel.h"
#include "support/multi_host_views.h"
#include "support/still_clock.h"

namespace horoacc::testing {
namespace {

constexpr int kRanks = 1024;
#ifdef __SANITIZE_THREAD__  // leaves no address space for the segments of so many hosts
constexpr int kHosts[] = {128};
#else
constexpr int kHosts[] = {128, kRanks};
#endif
constexpr size_t kMostLinks = 2 + kFanOut + kFanOut * kFanOut;  // parent to grandchildren

void RaiseDescriptors() {
  rlimit limit{};
  CHECK_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  CHECK_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

// Hosts on the way from the last one to the root.
int Depth(int hosts) {
  int depth = 0;
  for (int place = hosts - 1; place > 0; place = (place - 1) / static_cast<int>(kFanOut)) ++depth;
  return depth;
}

/// A job with a channel on each rank.
class Job {
 public:
  Job(int hosts, int ranks_of_each)
      : hosts_(hosts), of_each_(ranks_of_each), views_(std::vector<int>(hosts, ranks_of_each)) {
    std::vector<int> host_of;
    for (int rank = 0; rank < kRanks; ++rank) host_of.push_back(LeaderOf(rank));
    for (int host = 0; host < hosts; ++host) {
      memories_.emplace_back(static_cast<std::byte*>(
          std::aligned_alloc(4096, (RankDirectory::BytesFor(kRanks) + 4095) / 4096 * 4096)));
      std::memset(memories_.back().get(), 0, RankDirectory::BytesFor(kRanks));
      directories_.emplace_back(memories_.back().get(), kRanks);
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      std::vector<int> locals(of_each_);
      std::iota(locals.begin(), locals.end(), LeaderOf(rank));
      channels_.push_back(std::make_unique<JobChannel>(
          host_of, JobChannel::Surroundings{.rank = rank,
                                            .locals = locals,
                                            .mux = &views_.mux(rank),
                                            .directory = &directory(rank),
                                            .aborted = [this](const Error&) { ++aborted_; },
                                            .stack = [] { return "a"; },
                                            .ring_host = [] {},
                                            .wake_coordinator = [] {}}));
    }
  }

  [[nodiscard]] MultiHostViews& views() { return views_; }
  [[nodiscard]] JobChannel& channel(int rank) { return *channels_[rank]; }
  [[nodiscard]] RankDirectory& directory(int rank) { return directories_[rank / of_each_]; }
  [[nodiscard]] int LeaderOf(int rank) const { return rank - rank % of_each_; }
  [[nodiscard]] int aborted() const { return aborted_; }

  struct Cost {
    int messages = 0;
    size_t bytes = 0;
    int most_received = 0;  ///< by one rank
    size_t most_links = 0;  ///< of one rank, so far
  };
  /// Moves everything until nothing is on its way.
  Cost Settle(const char* what) {
    Cost cost;
    std::map<int, int> received;
    for (bool any = true; std::exchange(any, false);) {
      for (const auto& channel : channels_) channel->Progress();
      for (const auto& [receiver, message] : views_.Deliver()) {
        any = true;
        CHECK_EQ(LeaderOf(receiver), receiver);
        CHECK_EQ(LeaderOf(message.source), message.source);
        ++cost.messages;
        cost.bytes += message.bytes.size();
        cost.most_received = std::max(cost.most_received, ++received[receiver]);
      }
    }
    for (int rank = 0; rank < kRanks; ++rank)
      cost.most_links = std::max(cost.most_links, views_.tap(rank).with_link.size());
    std::printf("  %4d hosts, %-38s %5d messages, %7zu bytes, at most %3d to a rank, %2zu links\n",
                hosts_, what, cost.messages, cost.bytes, cost.most_received, cost.most_links);
    return cost;
  }

 private:
  struct Freed {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  const int hosts_;
  const int of_each_;
  int aborted_ = 0;
  MultiHostViews views_;
  std::vector<std::unique_ptr<std::byte, Freed>> memories_;
  std::vector<RankDirectory> directories_;
  std::vector<std::unique_ptr<JobChannel>> channels_;
};

TEST(messages_bytes_and_links_of_1024_ranks) {
  RaiseDescriptors();
  for (const int hosts : kHosts) {
    Job job(hosts, kRanks / hosts);
    MultiHostViews& views = job.views();
    const int depth = Depth(hosts);
    const auto announce = [&](int rank) {
      CHECK(views.Announce(rank, "a", Collective::kBarrier).ok());
    };
    for (int rank = 0; rank < kRanks; ++rank) announce(rank);
    const Job::Cost call = job.Settle("a barrier");
    CHECK_EQ(call.messages, 2 * (hosts - 1));
    CHECK(call.most_received <= static_cast<int>(kFanOut) + 1);
    CHECK(call.most_links <= kFanOut + 1);
    for (int rank = 0; rank < kRanks; ++rank) CHECK(views.Carry(rank).has_value());

    // All but one rank have submitted, and one asks whom they wait for.
    const int late = kRanks - 1;
    const int asks = kRanks / 2 + 1;
    for (int rank = 0; rank < late; ++rank) announce(rank);
    const Job::Cost before = job.Settle("the same, but one rank is late");
    CHECK(before.messages < hosts);
    // A host waits for its ranks, and then its leader for the hosts below.
    for (int wait = 0; wait < 2; ++wait) {
      StillClock() += 2 * kSubtreeTimeout;
      CHECK(job.Settle("news that has waited for long").messages <= 2 * depth);
    }
    const auto id = views[asks].control->Lookup("a");
    CHECK(id.ok());
    const auto arrivals = views[asks].control->id(id.value().id).arrivals.load();
    const uint64_t generation =
        views[asks].control->HasSubmitted(views[asks].context.me, {id.value().id, arrivals.open()})
            ? arrivals.open()
            : arrivals.over();
    const TensorKey key{id.value().id, generation};
    CHECK(views.controller(asks).WhoHas(key).ok());
    const Job::Cost asked = job.Settle("a question for the missing ranks");
    CHECK(asked.messages <= 2 * depth);
    CHECK(!views.controller(asks).Next().value().has_value());
    StillClock() += kSecond;
    const auto answer = views.controller(asks).WhoHas(key);
    CHECK(answer.ok() && answer.value().has_value());
    CHECK_EQ(answer.value()->missing.size(), 1U);
    CHECK_EQ(answer.value()->missing[0], late);
    (void)job.Settle("its repetition");
    announce(late);
    CHECK(job.Settle("the late rank submits").messages <= 2 * hosts);
    for (int rank = 0; rank < kRanks; ++rank) CHECK(views.Carry(rank).has_value());

    for (int rank = 0; rank < kRanks; ++rank) job.channel(rank).TellBeat();
    const Job::Cost beats = job.Settle("heartbeats");
    CHECK(beats.messages <= 3 * hosts);
    CHECK(beats.most_received <= static_cast<int>(kFanOut) + 2);
    CHECK(beats.most_links <= kMostLinks);
    CHECK_EQ(job.channel(0).watched().size(), kFanOut);

    for (int rank = 0; rank < kRanks; ++rank) {
      RankAddresses addresses;
      addresses.data = ResolveAddress("127.0.0.1:" + std::to_string(1000 + rank)).value().front();
      job.directory(0).Put(rank, addresses);
    }
    CHECK(!job.directory(late).Find(17));
    CHECK(job.Settle("a question for an address").messages <= 2 * depth);
    CHECK_EQ(job.directory(late).Find(17)->data.port(), 1017);

    job.channel(late).LeaveGroup(kGroupBit);
    const Job::Cost left = job.Settle("a rank leaves a group");
    CHECK_EQ(left.messages, hosts - 1);
    CHECK(job.channel(0).HasLeftGroup(kGroupBit, late));
    job.channel(0).TellSilence(job.LeaderOf(late), true);
    CHECK(job.Settle("a leader is silent").messages <= hosts);
    CHECK(job.channel(asks).SilentOnTheWay(late) ==
          (hosts == kRanks ? std::nullopt : std::optional(job.LeaderOf(late))));

    const Job::Cost all = [&] {
      job.channel(late).TellAbort(MakeError(ErrorKind::kSystem, "the end", late));
      for (int rank = 0; rank < kRanks; ++rank) {
        if (rank == job.LeaderOf(rank))
          job.channel(rank).TellAbort(MakeError(ErrorKind::kSystem, "the end", late));
      }
      return job.Settle("an abort");
    }();
    CHECK(all.messages <= 6 * hosts);
    CHECK(job.aborted() >= hosts);
    CHECK(all.most_links <= kMostLinks);
  }
}

// The root knows the addresses; hosts leave in the order in which they become it.
TEST(addresses_outlive_the_hosts_that_know_them) {
  Job job(128, kRanks / 128);
  for (int rank = 0; rank < kRanks; ++rank) {
    RankAddresses addresses;
    addresses.data = ResolveAddress("127.0.0.1:" + std::to_string(1000 + rank)).value().front();
    job.directory(0).Put(rank, addresses);
  }
  for (int host = 0; host < 4; ++host) {
    for (int local = kRanks / 128; local-- > 0;) job.channel(host * kRanks / 128 + local).Depart();
    (void)job.Settle("a host leaves");
  }
  CHECK(job.channel(kRanks - 1).HasLeft(0));
  CHECK(!job.directory(kRanks - 1).Find(kRanks / 2));
  (void)job.Settle("a question for an address");
  const auto found = job.directory(kRanks - 1).Find(kRanks / 2);
  CHECK(found.has_value());
  CHECK_EQ(found->data.port(), 1000 + kRanks / 2);
}

// Host 0 closes without reading that host 1 leaves at the same time, and passes nothing on.
TEST(hosts_that_leave_at_once_are_known_to_have_left) {
  constexpr int kOfEach = kRanks / 128;
  Job job(128, kOfEach);
  for (const int host : {0, 1}) {
    for (int local = kOfEach; local-- > 0;) job.channel(host * kOfEach + local).Depart();
  }
  JobChannel& leaves = job.channel(kOfEach);
  CHECK(leaves.AwaitsFarewell());
  std::erase_if(job.views().tap(kOfEach).sent,
                [](const ControlMessage& lost) { return lost.source < kOfEach; });
  for (int turn = 0; turn < 2; ++turn) {
    (void)job.Settle("two hosts leave");
    CHECK_EQ(leaves.AwaitsFarewell(), turn == 0);
  }
  for (const int rank : {0, kOfEach, 2 * kOfEach})
    CHECK_EQ(job.channel(kRanks - 1).HasLeft(rank), rank < 2 * kOfEach);
}

/// All ranks of a job meet here; counts what rank 0 answers.
struct Meeting {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> blobs = std::vector<std::string>(kRanks);
  std::vector<std::string> answers;
  int there = 0;
  int rounds = 0;
  size_t bytes = 0;          ///< of all answers
  size_t most_answered = 0;  ///< to one rank in one step
};

class CountedBootstrap final : public Bootstrap {
 public:
  CountedBootstrap(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return kRanks; }

 protected:
  // Rank 0 waits for the others, and they for its answers.
  Result<std::string> Round(const std::string& blob, const RawAnswers& answers, int64_t) override {
    std::unique_lock lock(meeting_.mutex);
    const int round = meeting_.rounds;
    meeting_.blobs[rank_] = blob;
    if (++meeting_.there == kRanks) meeting_.changed.notify_all();
    if (rank_ == 0) {
      meeting_.changed.wait(lock, [&] { return meeting_.there == kRanks; });
      meeting_.answers = answers(meeting_.blobs);
      for (const std::string& answer : meeting_.answers) {
        meeting_.bytes += answer.size();
        meeting_.most_answered = std::max(meeting_.most_answered, answer.size());
      }
      meeting_.there = 0;
      ++meeting_.rounds;
      meeting_.changed.notify_all();
    } else {
      meeting_.changed.wait(lock, [&] { return meeting_.rounds != round; });
    }
    return meeting_.answers[rank_];
  }

 private:
  Meeting& meeting_;
  const int rank_;
};

TEST(start_up_sends_no_rank_a_table_of_all) {
  for (const int of_each : {8, 1}) {
    Meeting meeting;
    std::vector<std::vector<std::byte>> memories(kRanks / of_each);
    for (auto& memory : memories) memory.resize(RankDirectory::BytesFor(kRanks) + 64);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        CountedBootstrap bootstrap(meeting, rank);
        const int64_t soon = NowNs() + 60 * kSecond;
        const int lowest = rank - rank % of_each;
        const auto settings = AgreeOnSettings({}, bootstrap, soon);
        CHECK(settings.ok() && CheckAlike(settings.value(), "1", bootstrap, soon).ok());
        CHECK(DrawEpoch(bootstrap, soon).ok());
        MultiHostParts parts;
        const std::string name = "node" + std::to_string(2000 + lowest / of_each);
        const auto hosts = HostsOfRanks(bootstrap, lowest, name, soon);
        CHECK(hosts.ok());
        CHECK_EQ(hosts.value().names[rank], name);
        CHECK_EQ(hosts.value().names[kRanks - 1], "node" + std::to_string(1999 + kRanks / of_each));
        parts.host_of = hosts.value().lowest;
        CHECK_EQ(parts.host_of[kRanks - 1], kRanks - of_each);
        const auto interfaces = AgreeOnInterfaces(bootstrap, std::to_string(lowest), 0, "lo", soon);
        CHECK(interfaces.ok());
        std::byte* const memory = memories[rank / of_each].data();
        parts.directory = std::make_shared<RankDirectory>(
            memory + (64 - reinterpret_cast<uintptr_t>(memory) % 64) % 64, kRanks);
        RankAddresses own;
        own.control = ResolveAddress("127.0.0.1:" + std::to_string(1000 + rank)).value().front();
        own.data = own.control;
        CHECK(ExchangeAddresses(bootstrap, own, parts, soon).ok());
        const TreeNeighbours next = NeighboursOf(parts.host_of, static_cast<uint32_t>(rank));
        for (const uint32_t above : next.above())
          CHECK_EQ(parts.directory->Find(static_cast<int>(above))->control.port(), 1000 + above);
        for (const uint32_t below : next.below())
          CHECK_EQ(parts.directory->Find(static_cast<int>(below))->control.port(), 1000 + below);
        size_t known = 0;
        for (int other = 0; other < kRanks; ++other) known += parts.directory->Knows(other) ? 1 : 0;
        CHECK(lowest == 0 ? known == kRanks : known <= kMostLinks + kRootsKnown + of_each);
      });
    }
    threads.clear();
    std::printf(
        "  hosts of %d: %d steps, %zu bytes to all ranks, at most %zu to a rank in a step\n",
        of_each, meeting.rounds, meeting.bytes, meeting.most_answered);
    CHECK(meeting.most_answered < 4096);  // a table of 1024 addresses has 40 KiB
  }
}

}  // namespace
}  // namespace horoacc::testing
