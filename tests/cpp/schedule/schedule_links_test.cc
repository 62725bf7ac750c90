// Schedules over links between threads, through shared memory between threads and processes, and
// over both kinds at once, as on several hosts.
#include <poll.h>

#include <thread>

#include "base/clock.h"
#include "base/futex.h"
#include "execute/schedule/schedule_run.h"
#include "support/forked_ranks.h"
#include "support/inproc_data.h"
#include "support/run_cases.h"
#include "transport/bootstrap/inproc.h"
#include "transport/bootstrap/tcp_rendezvous.h"
#include "transport/data/data_links.h"
#include "transport/data/shm/shm_data.h"

using namespace horoacc;
using schedule::Goal;
using schedule::Topology;

namespace {

constexpr size_t kMemory = 64 << 20;

size_t DoorbellBytes(size_t ranks) { return ranks * sizeof(Doorbell); }
size_t ControlBytes(size_t ranks) { return DoorbellBytes(ranks) + ShmDataControlBytes(ranks); }

/// A rank's part of its host: memory, an arena in it, doorbells, and the links through it.
struct HostPart {
  explicit HostPart(HostShare host) : share(std::move(host)) {
    const Segment& memory = share.memory[share.local_rank];
    arena = std::make_unique<Arena>(memory.data(), memory.size(), memory.fd(), 0);
    doorbells =
        std::make_unique<Doorbells>(reinterpret_cast<Doorbell*>(share.control.data()), share.wake);
  }
  [[nodiscard]] std::unique_ptr<DataLinks> MakeLinks() const {
    auto links =
        MakeShmDataLinks({.share = &share,
                          .control = share.control.data() + DoorbellBytes(share.memory.size()),
                          .arena = arena.get(),
                          .doorbells = doorbells.get()});
    CHECK(links.ok());
    return std::move(links).value();
  }

  HostShare share;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<Doorbells> doorbells;
};

/// Runs one rank's part to its end, asleep where nothing moves. What went wrong, or nothing.
std::optional<Error> Drive(DataLinks& links, ScheduleRun& run, const HostPart* host) {
  const int64_t deadline = NowNs() + 60 * kSecond;
  while (!run.complete() || links.HasUnsent()) {
    const uint32_t seen =
        host == nullptr ? 0 : host->doorbells->doorbell(host->share.local_rank).count.load();
    const Result<bool> moved = links.Progress();
    if (!moved.ok()) return moved.error();
    const bool advanced = run.Advance();
    if (run.failed()) return run.error();
    if (moved.value() || advanced) continue;
    if (NowNs() > deadline) return MakeError(ErrorKind::kTimeout, "waits: " + run.Waiting());
    const int64_t nap = links.MustPoll() ? 100 * kMicrosecond : 100 * kMillisecond;
    if (host != nullptr) {
      host->doorbells->SleepAsWaiter(host->share.local_rank, seen, nap);
    } else {
      pollfd wait{links.WaitFd(), POLLIN, 0};
      const timespec time{0, nap};
      ::ppoll(&wait, 1, &time, nullptr);
    }
  }
  return std::nullopt;
}

void MustBeRight(const std::optional<Error>& error, const RunCase& what) {
  if (error) check::Fail(__FILE__, __LINE__, what.Name() + ": " + error->message);
}

/// A job of threads: hosts as the shape says, shared memory inside them and a network between.
class ThreadedJob {
 public:
  ThreadedJob(const Topology& shape, const InprocDataOptions& network) : shape_(shape) {
    network_ = std::move(InprocDataHub::Create(static_cast<int>(shape.ranks()), network)).value();
    for (uint32_t h = 0; h < shape.hosts(); ++h) {
      const auto local = static_cast<int>(shape.local(h));
      hubs_.push_back(std::move(InprocHub::Create(local, ControlBytes(local), kMemory)).value());
      for (int i = 0; i < local; ++i) {
        HostShare share = hubs_.back()->MakeHostShare(i);
        for (int& rank : share.ranks) rank += static_cast<int>(shape.first(h));
        parts_.push_back(std::make_unique<HostPart>(std::move(share)));
      }
    }
    for (uint32_t rank = 0; rank < shape.ranks(); ++rank) {
      links_.push_back(MakeLinks(rank));
      if (shape.hosts() == 1) continue;
      const HostPart& part = *parts_[rank];
      const int link_fd = links_.back()->WaitFd();
      CHECK(part.doorbells->WatchLinks(part.share.local_rank, {&link_fd, 1}).ok());
    }
  }
  [[nodiscard]] DataLinks& links(uint32_t rank) { return *links_[rank]; }

  /// `shared`: inputs and outputs lie where the host's ranks see them.
  DataCounters Run(const RunCase& what, bool shared) {
    OddMemory own;
    const Allocate allocate = [&](uint32_t member, size_t bytes) {
      return shared ? static_cast<std::byte*>(parts_[member]->arena->Allocate(bytes + 1))
                    : own.allocate()(member, bytes);
    };
    const CaseData data(what, allocate);
    std::vector<std::jthread> threads;
    for (uint32_t rank = 0; rank < shape_.ranks(); ++rank) {
      threads.emplace_back([&, rank] {
        const HostPart& part = *parts_[rank];
        auto run = data.MakeRun(*links_[rank], rank, {.arena = part.arena.get(), .retire = {}});
        if (!run.ok()) check::Fail(__FILE__, __LINE__, run.error().message);
        MustBeRight(Drive(*links_[rank], *run.value(), &part), what);
        data.Check(rank);
      });
    }
    threads.clear();
    DataCounters sum;
    for (const auto& links : links_) sum.copied += links->counters().copied;
    return sum;
  }

 private:
  std::unique_ptr<DataLinks> MakeLinks(uint32_t rank) {
    if (shape_.hosts() == 1) return parts_[rank]->MakeLinks();
    std::vector<std::unique_ptr<DataLinks>> kinds;
    kinds.push_back(network_->MakeLinks(static_cast<int>(rank)));
    kinds.push_back(parts_[rank]->MakeLinks());
    std::vector<int> kind_of;
    for (uint32_t peer = 0; peer < shape_.ranks(); ++peer) {
      kind_of.push_back(shape_.host_of(peer) == shape_.host_of(rank) ? 1 : 0);
    }
    auto mix = MixDataLinks(std::move(kinds), kind_of);
    CHECK(mix.ok());
    return std::move(mix).value();
  }

  const Topology shape_;
  std::shared_ptr<InprocDataHub> network_;
  std::vector<std::shared_ptr<InprocHub>> hubs_;
  std::vector<std::unique_ptr<HostPart>> parts_;
  std::vector<std::unique_ptr<DataLinks>> links_;
};

RunCase BigCase(std::string_view algorithm, const Topology& shape, uint32_t k) {
  RunCase what{.algorithm = std::string(algorithm), .shape = shape};
  what.tensors[0].count = 30'001;
  what.options = k % 2 == 0 ? RunOptions{.window_bytes = 16 << 10, .places = 2, .depth = 1}
                            : RunOptions{.window_bytes = 48 << 10, .depth = 2, .slice_bytes = 2048};
  what.options.collective.sequence = k;
  what.seed = k;
  what.root = shape.ranks() / 2;
  return what;
}

}  // namespace

TEST(threads_over_a_network) {
  auto hub = std::move(InprocDataHub::Create(4, {.seed = 5, .longest_delay = 2})).value();
  std::vector<std::unique_ptr<DataLinks>> links;
  for (int rank = 0; rank < 4; ++rank) links.push_back(hub->MakeLinks(rank));
  uint32_t k = 0;
  for (const schedule::Algorithm& algorithm : schedule::Algorithms()) {
    const RunCase what = BigCase(algorithm.name, Topology::Equal(2, 2), ++k);
    OddMemory memory;
    const CaseData data(what, memory.allocate());
    std::vector<std::jthread> threads;
    for (uint32_t rank = 0; rank < 4; ++rank) {
      threads.emplace_back([&, rank] {
        auto run = data.MakeRun(*links[rank], rank);
        CHECK(run.ok());
        MustBeRight(Drive(*links[rank], *run.value(), nullptr), what);
        data.Check(rank);
      });
    }
  }
}

TEST(threads_in_shared_memory_and_mixed) {
  for (const Topology& shape :
       {Topology::Equal(1, 4), Topology::Equal(2, 2), Topology({3, 1, 2})}) {
    ThreadedJob job(shape, {.seed = 3, .longest_delay = 1});
    uint32_t k = 0;
    for (const schedule::Algorithm& algorithm : schedule::Algorithms()) {
      ++k;
      job.Run(BigCase(algorithm.name, shape, k), k % 3 == 0);
    }
  }
}

TEST(shared_memory_is_read_where_it_lies) {
  ThreadedJob job(Topology::Equal(1, 4), {});
  const RunCase what = BigCase("cpu_reduce", Topology::Equal(1, 4), 1);
  CHECK_EQ(job.Run(what, true).copied, 0u);
  RunCase apart = what;
  apart.options.collective.sequence = 2;
  CHECK(job.Run(apart, false).copied > 0);
}

TEST(more_messages_than_the_ring_has_notes) {
  ThreadedJob job(Topology::Equal(1, 2), {});
  RunCase what = BigCase("chain_broadcast", Topology::Equal(1, 2), 1);
  what.tensors[0].count = 400'000;
  what.options = {.window_bytes = 1 << 20, .depth = 2, .slice_bytes = 64, .most_slices = 2000};
  job.Run(what, true);
}

TEST(processes_in_shared_memory) {
  constexpr int kRanks = 4;
  FreePort port;
  const std::vector<int> codes = RunForked(kRanks, [&](int rank) {
    TcpOptions meet;
    meet.rank = rank;
    meet.size = kRanks;
    meet.address = port.address;
    meet.secret = "s";
    meet.deadline_ns = NowNs() + 30 * kSecond;
    if (rank == 0) meet.listen_fd = port.listener.get();
    const auto bootstrap = ConnectTcp(meet);
    CHECK(bootstrap.ok());
    auto share = ShareHost(*bootstrap.value(), {.label = "one host",
                                                .secret = "the job's secret",
                                                .control_bytes = ControlBytes(kRanks) + 64,
                                                .memory_bytes = kMemory,
                                                .deadline_ns = NowNs() + 30 * kSecond});
    CHECK(share.ok());
    const HostPart part(std::move(share.value()));
    const auto links = part.MakeLinks();
    const auto me = static_cast<uint32_t>(rank);
    uint32_t k = 0;
    for (const schedule::Algorithm& algorithm : schedule::Algorithms()) {
      const RunCase what = BigCase(algorithm.name, Topology::Equal(1, kRanks), ++k);
      OddMemory others;
      const CaseData data(what, [&](uint32_t member, size_t bytes) {
        const bool shared = member == me && k % 2 == 0;
        return shared ? static_cast<std::byte*>(part.arena->Allocate(bytes + 1))
                      : others.allocate()(member, bytes);
      });
      auto run = data.MakeRun(*links, me, {.arena = part.arena.get(), .retire = {}});
      CHECK(run.ok());
      MustBeRight(Drive(*links, *run.value(), &part), what);
      data.Check(me);
    }
    auto* const words =
        reinterpret_cast<std::atomic<uint32_t>*>(part.share.control.data() + ControlBytes(kRanks));
    const auto reach = [](std::atomic<uint32_t>& word, uint32_t ranks) {
      word.fetch_add(1);
      FutexWakeAll(word);
      const int64_t deadline = NowNs() + 30 * kSecond;
      for (uint32_t seen = 0; (seen = word.load()) < ranks;) {
        CHECK(NowNs() < deadline);
        FutexWait(word, seen, 100 * kMillisecond);
      }
    };
    // One rank dies in the middle of the next one, which all have reached; the others learn who.
    OddMemory memory;
    const CaseData data(BigCase("ring", Topology::Equal(1, kRanks), ++k), memory.allocate());
    auto run = data.MakeRun(*links, me, {.arena = part.arena.get(), .retire = {}});
    CHECK(run.ok());
    reach(words[0], kRanks);
    if (rank == 2) ::_exit(7);
    const std::optional<Error> error = Drive(*links, *run.value(), &part);
    CHECK(error && error->kind == ErrorKind::kPeerLost && error->culprit == 2);
    // Whoever leaves before the others have looked is lost to them as well.
    reach(words[1], kRanks - 1);
    return 0;
  });
  for (int rank = 0; rank < kRanks; ++rank) CHECK_EQ(codes[rank], rank == 2 ? 7 : 0);
}

TEST(a_lost_peer_and_an_abort_end_the_run) {
  for (const bool aborts : {false, true}) {
    auto hub = std::move(InprocDataHub::Create(3, {})).value();
    OddMemory memory;
    const RunCase what = BigCase("ring", Topology::Equal(3, 1), 1);
    const CaseData data(what, memory.allocate());
    std::vector<std::unique_ptr<DataLinks>> all;
    for (int rank = 0; rank < 3; ++rank) all.push_back(hub->MakeLinks(rank));
    std::vector<std::jthread> threads;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        const std::unique_ptr<DataLinks> links = std::move(all[rank]);
        auto run = data.MakeRun(*links, rank);
        CHECK(run.ok());
        if (rank == 1) {
          for (int turn = 0; turn < 20; ++turn) {
            [[maybe_unused]] const auto moved = links->Progress();
            run.value()->Advance();
          }
          if (!aborts) return;
          links->Abort(MakeError(ErrorKind::kAborted, "rank 1 has had enough", 1));
        }
        const std::optional<Error> error = Drive(*links, *run.value(), nullptr);
        CHECK(error && error->culprit == 1);
        CHECK(error->kind == (aborts ? ErrorKind::kAborted : ErrorKind::kPeerLost));
      });
    }
  }
}

TEST(links_that_cannot_be) {
  ThreadedJob job(Topology::Equal(2, 2), {});
  const LinkSpec good{.collective = {}, .peer = 1, .channel = 0, .slots = 1, .slot_bytes = 64};
  for (const int peer : {-1, 0, 4}) {
    LinkSpec spec = good;
    spec.peer = peer;
    CHECK(!job.links(0).OpenSend(spec).ok());
    CHECK(!job.links(0).OpenReceive(spec).ok());
  }
  for (const int peer : {1, 2}) {
    LinkSpec spec = good;
    spec.peer = peer;
    const auto first = job.links(0).OpenSend(spec);
    CHECK(first.ok() && !job.links(0).OpenSend(spec).ok());
    const std::vector<std::byte> much(65);
    const std::span<const std::byte> piece(much);
    const Status posted = first.value()->Post({&piece, 1});
    CHECK(!posted.ok() && posted.error().kind == ErrorKind::kInvalid);
    const auto receiving = job.links(0).OpenReceive(spec);
    CHECK(receiving.ok() && !job.links(0).OpenReceive(spec).ok());
    CHECK(receiving.value()->Expect(8, {}).ok());
    CHECK(!receiving.value()->Expect(8, {}).ok());
  }
}
