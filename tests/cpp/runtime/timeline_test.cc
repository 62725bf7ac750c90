// What a timeline shows: lanes, and the phases that nest in them.
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "support/traces.h"

namespace horoacc::testing {
namespace {

TEST(PhasesNestInTheTensorsLife) {
  const Folder folder;
  const std::string path = folder.File("trace.json");
  const int64_t origin = NowNs();
  const auto timeline = MustOpen(path, 3);
  const Way way{*timeline, NowNs(), 7, "grad"};
  way.Whole(0, 5);
  way.timeline.On({Phase::kReleased, NowNs(), 0, 99, 0, 0, "of nobody", {}});
  CHECK(timeline->Close().ok());
  const Trace trace = ReadFile(path, 3);
  const Json& start = trace.metadata.at("process_name").At("start_time_since_epoch_in_micros");
  CHECK(start.number > 1.7e15);
  CHECK_EQ(trace.lanes.size(), 1);
  const std::vector<Slice>& slices = trace.Of("grad");
  CHECK_EQ(slices.size(), 5);
  const std::vector<std::pair<const char*, int64_t>> expected = {{"allreduce", 40'000},
                                                                 {"NEGOTIATE_ALLREDUCE", 10'000},
                                                                 {"QUEUE", 1'000},
                                                                 {"ALLREDUCE", 20'000},
                                                                 {"RESULT", 9'000}};
  for (size_t s = 0; s < expected.size(); ++s) {
    CHECK_EQ(slices[s].name, expected[s].first);
    CHECK_EQ(slices[s].parent, s == 0 ? "" : "allreduce");
    // A time is cut to 1/8 us, so a length may be off by that much.
    CHECK(std::abs(slices[s].length_ns - expected[s].second) <= 125);
  }
  CHECK(slices[0].from_ns <= NowNs() - origin);
  CHECK_EQ(slices[0].args.At("tensor").text, "grad");
  CHECK_EQ(slices[0].args.At("process_set").number, 0);
  CHECK(!slices[0].args.Has("error") && !slices[0].args.Has("unfinished"));
  CHECK_EQ(slices[3].args.At("path").text, "direct_slices");
  CHECK_EQ(slices[3].args.At("bytes").number, 4096);
  CHECK_EQ(slices[3].args.At("bucket").number, 5);
}

TEST(NestsAtEveryNanosecond) {
  const Folder folder;
  const std::string path = folder.File("trace.json");
  const auto timeline = MustOpen(path);
  // Odd times, far from the start, some phases without length: Read() fails on any overlap.
  const int64_t origin = NowNs();
  int64_t now = 0;
  for (uint64_t round = 0; round < 2000; ++round) {
    const Way way{*timeline, origin, round + 1, "t"};
    const auto step = [&] { return now += static_cast<int64_t>(round * 37 % 401); };
    way.Tell(Phase::kQueued, now, "broadcast");
    way.Tell(Phase::kNegotiated, step(), {}, round + 1);
    way.Tell(Phase::kExecute, step(), "none", round + 1, 0);
    way.Tell(Phase::kExecuted, step());
    way.Tell(Phase::kReleased, step());
    now += static_cast<int64_t>(round * round * 11);
  }
  CHECK(timeline->Close().ok());
  const Trace trace = ReadFile(path);
  const auto& slices = trace.Of("t");
  CHECK_EQ(std::ranges::count(slices, std::string("broadcast"), &Slice::name), 2000);
  CHECK_EQ(std::ranges::count(slices, std::string("BROADCAST"), &Slice::name), 2000);
  for (const Slice& slice : slices) {
    CHECK_EQ(slice.parent, slice.name == "broadcast" ? "" : "broadcast");
  }
}

TEST(NamesAreEscaped) {
  const Folder folder;
  const std::string path = folder.File("trace.json");
  const auto timeline = MustOpen(path);
  const std::string replaced = "\xef\xbf\xbd";
  const std::vector<std::pair<std::string, std::string>> names = {
      {"layer.\"0\"\\w", "layer.\"0\"\\w"},
      {"a\nb\tc\x01"
       "d\x1f\x7f",
       "a\nb\tc\x01"
       "d\x1f\x7f"},
      {std::string("nul\0l", 5), std::string("nul\0l", 5)},
      {"gew\xc3\xb6hnlich \xe6\xa2\xaf\xe5\xba\xa6 \xf0\x9f\x8e\x89",
       "gew\xc3\xb6hnlich \xe6\xa2\xaf\xe5\xba\xa6 \xf0\x9f\x8e\x89"},
      {"latin \xf6", "latin " + replaced},
      {"overlong \xc0\xaf", "overlong " + replaced + replaced},
      {"overlong too \xe0\x80\xaf", "overlong too " + replaced + replaced + replaced},
      {"surrogate \xed\xa0\x80", "surrogate " + replaced + replaced + replaced},
      {"beyond \xf4\x90\x80\x80", "beyond " + replaced + replaced + replaced + replaced},
      {"cut \xe6\xa2", "cut " + replaced + replaced},
      {"", ""},
  };
  for (size_t n = 0; n < names.size(); ++n) {
    const Way way{*timeline, NowNs(), n + 1, names[n].first};
    way.Tell(Phase::kQueued, 0, "allgather");
    way.Tell(Phase::kError, 5'000, "shape of '" + names[n].first + "' differs");
    way.Tell(Phase::kReleased, 6'000);
  }
  CHECK(timeline->Close().ok());
  const Trace trace = ReadFile(path);
  CHECK_EQ(trace.lanes.size(), names.size());
  for (const auto& [given, shown] : names) {
    const std::vector<Slice>& slices = trace.Of(shown);
    CHECK_EQ(slices.size(), 3);
    CHECK_EQ(slices[0].args.At("tensor").text, shown);
    CHECK_EQ(slices[0].args.At("error").text, "shape of '" + shown + "' differs");
    CHECK_EQ(slices[1].name, "NEGOTIATE_ALLGATHER");
    CHECK_EQ(slices[2].name, "RESULT");
  }
}

TEST(FourThreadsWriteAtOnce) {
  const Folder folder;
  const std::string path = folder.File("trace.json");
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kRounds = 2000;
  const auto timeline = MustOpen(path);
  {
    std::vector<std::jthread> threads;
    for (uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&timeline, t] {
        for (uint64_t round = 0; round < kRounds; ++round) {
          const Way named{*timeline, 0, 1 + 2 * (round * kThreads + t),
                          "grad." + std::to_string(t)};
          const Way unnamed{*timeline, 0, named.handle + 1,
                            "alltoall.noname." + std::to_string(named.handle)};
          for (const Way* way : {&named, &unnamed}) {
            way->Tell(Phase::kQueued, NowNs(), "alltoall");
            way->Tell(Phase::kNegotiated, NowNs(), {}, round + 1);
            way->Tell(Phase::kExecute, NowNs(), "windows", round + 1, 8);
            way->Tell(Phase::kExecuted, NowNs());
            way->Tell(Phase::kReleased, NowNs());
          }
        }
      });
    }
  }
  CHECK(timeline->Close().ok());
  const Trace trace = ReadFile(path);
  size_t named = 0;
  std::set<std::string> unnamed;
  for (const auto& [tid, slices] : trace.slices) {
    const bool shared = trace.lanes.at(tid).starts_with("alltoall.noname.*");
    for (const Slice& slice : slices) {
      if (slice.name != "alltoall") {
        CHECK_EQ(slice.parent, "alltoall");
      } else if (shared) {
        CHECK(unnamed.insert(slice.args.At("tensor").text).second);
      } else {
        ++named;
      }
    }
  }
  CHECK_EQ(named, kThreads * kRounds);
  CHECK_EQ(unnamed.size(), kThreads * kRounds);
  // Lanes of unnamed tensors are as many as were in flight at once: only a thread that was held
  // up between taking the time and telling it adds to the four.
  CHECK(trace.lanes.size() < kThreads + 100);
}

TEST(ANameUsedAgainEndsTheSliceBefore) {
  const Folder folder;
  const std::string path = folder.File("trace.json");
  const auto timeline = MustOpen(path);
  const int64_t origin = NowNs();
  // Failed and never released: it ends with its error.
  const Way failed{*timeline, origin, 1, "a"};
  failed.Tell(Phase::kQueued, 0, "broadcast");
  failed.Tell(Phase::kError, 5'000, "no such root");
  Way{*timeline, origin, 2, "a"}.Whole(20'000, 1);
  // Let go while it still ran: it ends where the next begins, and what it tells later is ignored.
  const Way abandoned{*timeline, origin, 3, "b"};
  abandoned.Tell(Phase::kQueued, 0, "broadcast");
  abandoned.Tell(Phase::kReleased, 1'000);
  Way{*timeline, origin, 4, "b"}.Whole(8'000, 2);
  abandoned.Tell(Phase::kExecuted, 9'000);
  // Released before its end, but nobody used the name meanwhile.
  const Way early{*timeline, origin, 5, "c"};
  early.Tell(Phase::kQueued, 0, "broadcast");
  early.Tell(Phase::kReleased, 1'000);
  early.Tell(Phase::kNegotiated, 2'000, {}, 3);
  early.Tell(Phase::kExecute, 3'000, "windows", 3, 64);
  early.Tell(Phase::kExecuted, 7'000);
  CHECK(timeline->Close().ok());

  const Trace trace = ReadFile(path);
  const auto close_to = [](int64_t actual, int64_t expected) {
    return std::abs(actual - expected) <= 125;
  };
  const auto& a = trace.Of("a");
  CHECK_EQ(a.size(), 7);
  CHECK(close_to(a[0].length_ns, 5'000));
  CHECK_EQ(a[0].args.At("error").text, "no such root");
  CHECK(!a[0].args.Has("unfinished"));
  const auto& b = trace.Of("b");
  CHECK_EQ(b.size(), 7);
  CHECK(close_to(b[0].length_ns, 8'000));
  CHECK(b[0].args.Has("unfinished"));
  CHECK_EQ(b[2].name, "allreduce");
  CHECK(close_to(b[2].length_ns, 40'000));
  const auto& c = trace.Of("c");
  CHECK_EQ(c.size(), 4);
  CHECK(close_to(c[0].length_ns, 7'000));
  CHECK(close_to(c[3].length_ns, 4'000));
  CHECK_EQ(c[3].name, "BROADCAST");
}

TEST(WhatIsInFlightAtTheEndIsUnfinished) {
  const Folder folder;
  const std::string path = folder.File("trace.json");
  const auto timeline = MustOpen(path);
  const int64_t origin = NowNs();
  const Way stuck{*timeline, origin, 1, "stuck"};
  stuck.Tell(Phase::kQueued, 0, "allreduce");
  const Way running{*timeline, origin, 2, "running"};
  running.Tell(Phase::kQueued, 0, "allreduce");
  running.Tell(Phase::kNegotiated, 10, {}, 1);
  running.Tell(Phase::kExecute, 10'000, "two_phase", 1, 12);
  const Way held{*timeline, origin, 3, "held"};
  held.Tell(Phase::kQueued, 0, "allreduce");
  held.Tell(Phase::kExecuted, 20'000);
  CHECK(timeline->Close().ok());
  const Trace trace = ReadFile(path);
  const auto& waiting = trace.Of("stuck");
  CHECK_EQ(waiting.size(), 2);
  CHECK(waiting[0].args.Has("unfinished"));
  CHECK_EQ(waiting[1].name, "NEGOTIATE_ALLREDUCE");
  CHECK_EQ(waiting[1].length_ns, waiting[0].length_ns);
  const auto& begun = trace.Of("running");
  CHECK(begun[0].args.Has("unfinished"));
  CHECK_EQ(begun.back().name, "ALLREDUCE");
  CHECK_EQ(begun.back().args.At("path").text, "two_phase");
  CHECK(!trace.Of("held")[0].args.Has("unfinished"));
}

TEST(DecisionsAreMarkedOnRequest) {
  const Folder folder;
  for (const bool marked : {false, true}) {
    const std::string path = folder.File("trace.json");
    const auto timeline = MustOpen(path, 0, marked);
    const int64_t origin = NowNs();
    for (uint64_t bucket = 1; bucket <= 3; ++bucket) {
      for (const char* tensor : {"a", "b"}) {
        Way{*timeline, origin, 2 * bucket + (*tensor == 'a'), tensor}.Whole(
            static_cast<int64_t>(bucket) * 100'000, bucket);
      }
    }
    Way{*timeline, origin, 100, "a", 4}.Whole(0, 1);
    CHECK(timeline->Close().ok());
    const Trace trace = ReadFile(path);
    std::map<int, std::vector<int>> buckets;
    for (const auto& [tid, args] : trace.instants) {
      CHECK_EQ(trace.lanes.at(tid), "decisions");
      buckets[static_cast<int>(args.At("process_set").number)].push_back(
          static_cast<int>(args.At("bucket").number));
    }
    if (marked) {
      CHECK(buckets == (std::map<int, std::vector<int>>{{0, {1, 2, 3}}, {4, {1}}}));
    } else {
      CHECK(buckets.empty());
    }
    CHECK_EQ(trace.Of("a [process set 4]").size(), 5);
  }
}

TEST(LanesStay) {
  const Folder folder;
  const std::string path = folder.File("trace.json");
  const auto timeline = MustOpen(path);
  const int64_t origin = NowNs();
  uint64_t handle = 0;
  for (int step = 0; step < 4; ++step) {
    for (const char* tensor : {"w", "b"}) {
      for (const uint32_t set : {0U, 2U}) {
        Way{*timeline, origin, ++handle, tensor, set}.Whole(step * 50'000, handle);
      }
    }
    // Two unnamed ones in flight together, with ever new numbers.
    const std::string number = std::to_string(2 * step);
    const Way one{*timeline, origin, ++handle, "allreduce.noname." + number};
    one.Tell(Phase::kQueued, step * 50'000, "allreduce");
    Way{*timeline, origin, ++handle, "allreduce.noname.1" + number}.Whole(step * 50'000, handle);
    one.Tell(Phase::kExecuted, step * 50'000 + 45'000);
    one.Tell(Phase::kReleased, step * 50'000 + 45'000);
  }
  Way{*timeline, origin, ++handle, "my.noname.layer"}.Whole(0, handle);
  CHECK(timeline->Close().ok());
  const Trace trace = ReadFile(path);
  std::set<std::string> titles;
  for (const auto& [tid, title] : trace.lanes) titles.insert(title);
  CHECK(titles ==
        (std::set<std::string>{"w", "b", "w [process set 2]", "b [process set 2]",
                               "allreduce.noname.*", "allreduce.noname.* (2)", "my.noname.layer"}));
  for (const char* title : {"w", "b", "w [process set 2]", "b [process set 2]"}) {
    CHECK_EQ(trace.Of(title).size(), 4 * 5);
  }
  CHECK_EQ(trace.Of("allreduce.noname.*").size(), 4 * 2);
  CHECK_EQ(trace.Of("allreduce.noname.* (2)").size(), 4 * 5);
}

}  // namespace
}  // namespace horoacc::testing
