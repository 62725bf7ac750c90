// The engine's parts one by one: jobs of two ranks whose engines are not there.
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/ranks.h"

namespace horoacc::testing {
namespace {

EngineParts PartsOf(InprocHub& hub, int rank, int ranks) {
  EngineParts parts;
  parts.placement = {rank, ranks, rank, ranks, 0, 1};
  parts.bootstrap = hub.MakeBootstrap(rank);
  parts.share = hub.MakeHostShare(rank);
  return parts;
}

Settings Silent() {
  Settings settings;
  settings.log_level = LogLevel::kFatal;
  return settings;
}

/// One rank's parts, up to those that end calls.
struct Rank {
  Rank(InprocHub& hub, int rank, int ranks) : job(Silent(), PartsOf(hub, rank, ranks)) {
    std::vector<int> all(static_cast<size_t>(ranks));
    for (int r = 0; r < ranks; ++r) all[r] = r;
    sets.Add(MakeProcessSet(job, 0, 0, all));
    CHECK(job.callbacks.Start().ok());
  }

  std::shared_ptr<CollectiveEntry> Submit(const std::string& name, double limit_seconds = 0) {
    Submission submission =
        Make(Collective::kAllreduce, name, DType::kFloat32, {1}, &value, &value);
    submission.limit_seconds = limit_seconds;
    submission.done = [this] { callbacks.fetch_add(1); };
    const Result<uint64_t> handle = submitter.Submit(std::move(submission));
    CHECK(handle.ok());
    auto entry = std::static_pointer_cast<CollectiveEntry>(handles.Find(handle.value()));
    CHECK(entry != nullptr);
    return entry;
  }

  float value = 1;
  std::atomic<int> callbacks{0};
  Job job;
  Failure failure{job};
  SetTable sets{job};
  Handles handles;
  Telemetry telemetry{job, sets};
  DeviceCalls devices{job};
  Completion completion{job, failure};
  Deadlines deadlines{job, failure, sets, telemetry};
  Submitter submitter{job, failure, sets, handles, devices};
};

struct TwoRanks {
  TwoRanks() {
    auto made = InprocHub::Create(2, ControlSegment::BytesFor(2), 1ull << 30);
    CHECK(made.ok());
    hub = made.value();
    for (int rank = 0; rank < 2; ++rank) ranks[rank] = std::make_unique<Rank>(*hub, rank, 2);
  }
  std::shared_ptr<InprocHub> hub;
  std::array<std::unique_ptr<Rank>, 2> ranks;
};

TEST(the_first_abort_is_the_one_that_all_ranks_see) {
  TwoRanks job;
  Rank& zero = *job.ranks[0];
  Rank& one = *job.ranks[1];
  CHECK(!zero.job.aborted() && !one.failure.recorded());
  CHECK(one.failure.AbortHere(MakeError(ErrorKind::kSystem, "first", 1)));
  CHECK(!zero.failure.AbortHere(MakeError(ErrorKind::kTimeout, "second", 0)));
  CHECK(zero.job.aborted());
  CHECK_EQ(zero.job.control.aborted().message, "first");
  CHECK_EQ(zero.job.control.aborted().culprit, 1);
}

TEST(a_recorded_failure_refuses_what_is_submitted_later) {
  TwoRanks job;
  Rank& rank = *job.ranks[0];
  CHECK(rank.failure.UnlessFailed([] { return Status(); }).ok());
  CHECK(rank.failure.Record(MakeError(ErrorKind::kPeerLost, "rank 1 died", 1)));
  CHECK(!rank.failure.Record(MakeError(ErrorKind::kTimeout, "late", 0)));
  CHECK(!rank.failure.UnlessFailed([] { return Status(); }).ok());
  const Result<uint64_t> refused = rank.submitter.Submit(
      Make(Collective::kAllreduce, "x", DType::kFloat32, {1}, &rank.value, &rank.value));
  CHECK(!refused.ok());
  CHECK_EQ(refused.error().message, "rank 1 died");
  CHECK_EQ(refused.error().tensor, "x");
}

TEST(a_table_has_the_sets_of_its_rank) {
  TwoRanks job;
  Rank& rank = *job.ranks[0];
  rank.sets.Add(MakeProcessSet(rank.job, 65, 1, {0}));
  CHECK((rank.sets.Ids() == std::vector<uint32_t>{0, 65}));
  CHECK(rank.sets.FindByRanks({0}) == std::optional<uint32_t>(65));
  CHECK(!rank.sets.FindByRanks({1}) && !rank.sets.Find(1) && !rank.sets.Find(2));
  CHECK_EQ(rank.sets.Own().size(), size_t{2});
  CHECK_EQ(rank.sets.FreeSlots(), ~uint64_t{3});

  // A set that was removed is driven, and keeps its slot, until it is done.
  std::shared_ptr<ProcessSet> set = rank.sets.Find(65);
  rank.sets.Remove(set, true);
  CHECK(!rank.sets.Find(65) && rank.sets.AnyRemoved());
  CHECK_EQ(rank.sets.Driven().size(), size_t{2});
  CHECK_EQ(rank.sets.FreeSlots(), ~uint64_t{3});
  CHECK(set->controller->End(SetEnd::Left(0)).ok());
  CHECK(set->controller->Release().ok() && set->done());
  CHECK_EQ(rank.sets.Driven().size(), size_t{2});  // `set` still refers to it
  const std::weak_ptr<ProcessSet> gone = set;
  set.reset();
  CHECK_EQ(rank.sets.Driven().size(), size_t{1});
  CHECK(gone.expired() && !rank.sets.AnyRemoved());
  CHECK_EQ(rank.sets.FreeSlots(), ~uint64_t{1});
  CHECK_EQ(rank.sets.TakeAll().size(), size_t{1});
  CHECK(rank.sets.Ids().empty());
}

TEST(a_call_is_given_up_once_and_names_the_missing_rank) {
  TwoRanks job;
  Rank& rank = *job.ranks[0];
  const auto entry = rank.Submit("late", 1e-9);
  const auto patient = rank.Submit("patient", 1000);
  rank.deadlines.Look();
  rank.deadlines.Look();
  const Deadlines::GivenUp given_up = rank.deadlines.Take();
  CHECK_EQ(given_up.size(), size_t{1});
  CHECK(given_up[0].first == entry);
  CHECK(given_up[0].second.kind == ErrorKind::kTimeout);
  CHECK_EQ(given_up[0].second.culprit, 1);
  CHECK_EQ(given_up[0].second.tensor, "late");
  CHECK(given_up[0].second.message.ends_with("waiting for rank(s) 1"));
  CHECK(rank.deadlines.Take().empty());
  const std::shared_ptr<ProcessSet> set = rank.sets.Find(0);
  rank.completion.Complete(*set, std::array{entry, patient}, {});
}

TEST(an_end_frees_the_id_publishes_what_waits_behind_and_calls_back_once) {
  TwoRanks job;
  Rank& rank = *job.ranks[0];
  const std::shared_ptr<ProcessSet> set = rank.sets.Find(0);
  const auto first = rank.Submit("x");
  // The name may be used again once its handle is released; the id is still in flight.
  rank.handles.Remove(first->handle);
  first->reservation->held_by = 0;
  const auto second = rank.Submit("x");
  CHECK(set->queue.in_flight.Find(first->id) == first);
  CHECK_EQ(set->queue.backlog.size(), size_t{1});
  CHECK_EQ(set->queue.pending.load(), 2u);

  std::jthread waiter([&] { rank.completion.Await(*first, 60 * kSecond); });
  rank.completion.Complete(*set, {&first, 1}, MakeError(ErrorKind::kSystem, "broken", 1));
  waiter.join();
  CHECK(first->complete && !first->outcome.ok());
  CHECK_EQ(first->outcome.error().tensor, "x");
  CHECK(set->queue.in_flight.Find(second->id) == second && set->queue.backlog.empty());
  rank.completion.Complete(*set, {&second, 1}, {});
  CHECK(second->outcome.ok());
  CHECK_EQ(set->queue.pending.load(), 0u);
  rank.job.callbacks.Stop();
  CHECK_EQ(rank.callbacks.load(), 2);
}

TEST(tasks_run_in_order_and_a_long_one_holds_no_other_up) {
  std::vector<int> order;
  TaskThreads alone(1, "alone");
  CHECK(alone.Start().ok());
  for (int k = 0; k < 100; ++k) alone.Post([&, k] { order.push_back(k); });
  alone.Stop();
  CHECK_EQ(order.size(), size_t{100});
  CHECK(std::ranges::is_sorted(order));
  bool ran = false;
  alone.Post([&] { ran = true; });  // after the end, on the poster's thread
  CHECK(ran);

  // Each waits for the one behind it.
  constexpr int kChain = 8;
  TaskThreads several(kChain, "several");
  CHECK(several.Start().ok());
  std::vector<std::unique_ptr<std::latch>> done;
  for (int k = 0; k <= kChain; ++k) done.push_back(std::make_unique<std::latch>(1));
  done[kChain]->count_down();
  for (int k = 0; k < kChain; ++k) {
    several.Post([&, k] {
      done[k + 1]->wait();
      done[k]->count_down();
    });
  }
  several.Stop();
  CHECK(done[0]->try_wait());
}

}  // namespace
}  // namespace horoacc::testing
