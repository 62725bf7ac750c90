// The control segment's name table: names that collide, ids that are recycled.
#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "support/ranks.h"
#include "support/segment_views.h"

namespace horoacc::testing {
namespace {

using Names = std::vector<std::string>;

/// Names whose places in the table are all the same.
Names CollidingNames(size_t count, uint64_t place = 7) {
  Names names;
  for (uint64_t k = 0; names.size() < count; ++k) {
    std::string name = "layer." + std::to_string(k) + ".weight";
    if (HashName(name) % kNameSlots == place) names.push_back(std::move(name));
  }
  return names;
}

/// Every tensor runs on its own.
Settings Unfused() {
  Settings settings;
  settings.fusion_threshold = 0;
  return settings;
}

/// Submits and finishes names until every id is taken.
void FillIds(SegmentViews& controls, const std::string& prefix) {
  for (uint32_t k = 0; controls.control().header().ids < kNamedIds; ++k) {
    controls.AnnounceEverywhere(prefix + std::to_string(k));
    (void)controls.CarryOut();
  }
}

TEST(every_name_has_an_id_of_its_own_on_all_ranks) {
  const SegmentViews controls(2);
  std::set<uint32_t> ids;
  for (uint32_t k = 0; k < kNamedIds; ++k) {
    const SetSegment::NamedId found = controls.Lookup("t" + std::to_string(k), k % 2);
    CHECK(found.id < kNamedIds);
    CHECK_EQ(found.id_version, 0);
    CHECK(ids.insert(found.id).second);
  }
  for (uint32_t k = 0; k < kNamedIds; k += 7) {
    const std::string name = "t" + std::to_string(k);
    const uint32_t id = controls.Lookup(name, 0).id;
    CHECK_EQ(controls.Lookup(name, 1).id, id);
    CHECK_EQ(controls.control().NameOf(id), name);
  }
}

// One word holds three counts: none may run into its neighbour.
TEST(counts_of_arrivals_are_kept_apart) {
  Arrivals arrivals;
  uint64_t over = 0;
  for (uint32_t name = 0; name < 3; ++name) {
    for (uint32_t generation = 0; generation < 4; ++generation) {
      for (uint32_t rank = 0; rank < 4095; ++rank) arrivals = arrivals.Arrive(4096);
      CHECK_EQ(arrivals.arrived(), 4095);
      CHECK_EQ(arrivals.open(), over + 1);
      CHECK_EQ(arrivals.id_version(), name);
      const bool skip = generation == 2;
      arrivals = skip ? arrivals.ClosedWithNext() : arrivals.Closed();
      over += skip ? 2 : 1;
      CHECK_EQ(arrivals.arrived(), 0);
      CHECK_EQ(arrivals.over(), over);
    }
    arrivals = arrivals.Renamed();
    CHECK_EQ(arrivals.over(), over);
  }
  CHECK_EQ(arrivals.id_version(), 3);
}

// Generations wrap around within their own bits: none is 0, which rows without a call have, and
// each has another parity than the one before it, whose row may still be read.
TEST(generations_wrap_around) {
  ArrivalsIn<uint16_t, 4, 6> arrivals;
  for (int name = 0; name < 3; ++name) arrivals = arrivals.Renamed();
  for (int call = 1; call < 200; ++call) {
    const uint64_t open = call < 64 ? call : 2 + (call - 64) % 62;
    CHECK_EQ(arrivals.open(), open);
    CHECK(arrivals.Admits(3, open) && !arrivals.Admits(3, arrivals.over()));
    CHECK(arrivals.over() % 2 != open % 2);
    const auto skipped = arrivals.ClosedWithNext();
    arrivals = arrivals.Arrive(2);
    CHECK_EQ(arrivals.arrived(), 1);
    arrivals = arrivals.Arrive(2);
    CHECK_EQ(arrivals.over(), open);
    CHECK_EQ(arrivals.arrived(), 0);
    CHECK_EQ(arrivals.id_version(), 3);
    CHECK(skipped == arrivals.Closed());
  }
}

TEST(calls_run_on_when_generations_wrap_around) {
  SegmentViews controls(3);
  const SetSegment::NamedId id = controls.Lookup("a");
  const uint64_t word = ((uint64_t{1} << 36) - 4) << 12;  // three generations are left
  std::memcpy(static_cast<void*>(&controls.control().id(id.id).arrivals), &word, sizeof word);
  for (int call = 0; call < 8; ++call) {
    controls.AnnounceEverywhere("a");
    CHECK_EQ(controls.CarryOut().size(), 1);
    CHECK_EQ(controls.Lookup("a").id_version, 0);
  }
  CHECK_EQ(controls.control().id(id.id).arrivals.load().over(), 6);
}

TEST(names_without_a_finished_call_keep_their_ids) {
  const SegmentViews controls(2);
  for (uint32_t k = 0; k < kNamedIds; ++k) (void)controls.Lookup("t" + std::to_string(k));
  auto one_more = controls.control().Lookup("one more");
  CHECK(!one_more.ok());
  CHECK(one_more.error().kind == ErrorKind::kInvalid);
  CHECK(one_more.error().message.find(std::to_string(kNamedIds)) != std::string::npos);
  // The table is as it was.
  CHECK(!controls.control().Lookup("one more").ok());
  CHECK_EQ(controls.control().NameOf(controls.Lookup("t5").id), "t5");
}

TEST(colliding_names_are_told_apart) {
  const SegmentViews controls(2);
  const Names names = CollidingNames(100);
  std::map<std::string, uint32_t> ids;
  for (const std::string& name : names) ids[name] = controls.Lookup(name).id;
  for (const std::string& name : names) {
    CHECK_EQ(controls.Lookup(name, 1).id, ids[name]);
    CHECK_EQ(controls.control(1).NameOf(ids[name]), name);
  }
  std::set<uint32_t> distinct;
  for (const auto& [name, id] : ids) distinct.insert(id);
  CHECK_EQ(distinct.size(), names.size());
}

TEST(long_names_that_begin_alike_are_told_apart) {
  const SegmentViews controls(1);
  const std::string start(kMaxName, 'x');
  std::set<uint32_t> ids;
  for (const std::string& name : {start, start + "a", start + "b", start + "aa", start.substr(1)}) {
    ids.insert(controls.Lookup(name).id);
    CHECK_EQ(controls.Lookup(name).id, controls.Lookup(name).id);
  }
  CHECK_EQ(ids.size(), 5);
}

TEST(names_may_hold_any_byte) {
  const SegmentViews controls(1);
  const std::string with_zero("a\0b", 3);
  CHECK(controls.Lookup(with_zero).id != controls.Lookup("a").id);
  CHECK_EQ(controls.control().NameOf(controls.Lookup(with_zero).id), with_zero);
}

TEST(the_id_that_rested_longest_goes_to_the_new_name) {
  SegmentViews controls(2, Unfused());
  for (const char* name : {"first", "second", "third"}) {
    controls.AnnounceEverywhere(name);
    CHECK(controls.CarryOut() == std::vector<Names>{{name}});
  }
  FillIds(controls, "more.");
  const uint32_t first = controls.Lookup("first").id;
  const uint32_t second = controls.Lookup("second").id;
  controls.AnnounceEverywhere("first");  // has rested less than "second" now
  CHECK(controls.CarryOut() == std::vector<Names>{{"first"}});
  const SetSegment::NamedId fresh = controls.Lookup("fresh", 1);
  CHECK_EQ(fresh.id, second);
  CHECK_EQ(fresh.id_version, 1);
  CHECK_EQ(controls.Lookup("first").id, first);
  CHECK_EQ(controls.Lookup("fresh", 0).id, fresh.id);
  CHECK_EQ(controls.Lookup("fresh", 0).id_version, 1);
  // A rank that still knows the id under its old name is told to look it up again.
  CHECK_EQ(controls.Announce(0, {second, 0}).value(), Announced::kLookUpAgain);
  const SetSegment::NamedId again = controls.Lookup("second");
  CHECK(again.id != second);
  controls.AnnounceEverywhere("second");
  controls.AnnounceEverywhere("fresh");
  CHECK((controls.CarryOut() == std::vector<Names>{{"second"}, {"fresh"}}));
}

TEST(an_id_in_use_is_not_recycled) {
  SegmentViews controls(2, Unfused());
  // Submitted by one rank only: its peer has yet to come.
  const SetSegment::NamedId half = controls.Lookup("half");
  controls.AnnounceEverywhere("half");
  (void)controls.CarryOut();
  // Decided, but not carried out by rank 1.
  controls.AnnounceEverywhere("unfinished");
  FillIds(controls, "more.");
  CHECK(controls.Announce(1, half).ok());
  for (int k = 0; k < 100; ++k) {
    controls.AnnounceEverywhere("new." + std::to_string(k));
    (void)controls.CarryOut();
  }
  CHECK_EQ(controls.Lookup("half").id, half.id);
  CHECK_EQ(controls.Lookup("half").id_version, half.id_version);
  CHECK(controls.Announce(0, half).ok());
  CHECK(controls.CarryOut() == std::vector<Names>{{"half"}});
}

// Ready on all ranks, and waiting for the rest of its bucket: the id is anything but at rest.
TEST(an_id_that_waits_for_its_bucket_is_not_recycled) {
  SegmentViews controls(2);
  for (int step = 0; step < 2; ++step) {
    for (const char* name : {"waits", "comes later"}) controls.AnnounceEverywhere(name);
    (void)controls.CarryOut();
  }
  const SetSegment::NamedId waits = controls.Lookup("waits");
  controls.AnnounceEverywhere("waits");
  CHECK(controls.CarryOut().empty());
  FillIds(controls, "more.");
  for (int k = 0; k < 3; ++k) {
    CHECK(controls.Lookup("new." + std::to_string(k)).id != waits.id);
  }
  CHECK_EQ(controls.Lookup("waits").id, waits.id);
  CHECK_EQ(controls.Lookup("waits").id_version, waits.id_version);
}

// The bucket of a waiting tensor loses its only other member to a new name: then it must run, or
// at the latest when its rank says that it is blocked.
TEST(a_tensor_whose_bucket_mate_is_recycled_still_runs) {
  SegmentViews controls(2);
  for (int step = 0; step < 2; ++step) {
    for (const char* name : {"mate", "waits"}) controls.AnnounceEverywhere(name);
    (void)controls.CarryOut();
  }
  const uint32_t waits = controls.Lookup("waits").id;
  controls.AnnounceEverywhere("waits");
  FillIds(controls, "more.");
  for (int k = 0; k < 3; ++k) (void)controls.Lookup("new." + std::to_string(k));
  CHECK(controls[0].controller->Unblock({&waits, 1}).ok());
  CHECK(controls.CarryOut() == std::vector<Names>{{"waits"}});
}

// Recycled names leave holes in the chains of colliding names; no name behind a hole gets lost.
TEST(names_behind_recycled_ones_are_still_found) {
  SegmentViews controls(2, Unfused());
  const Names names = CollidingNames(30);
  for (const std::string& name : names) {
    controls.AnnounceEverywhere(name);
    (void)controls.CarryOut();
  }
  FillIds(controls, "more.");
  // The first ten have rested longest.
  std::map<std::string, uint32_t> kept;
  for (size_t k = 10; k < names.size(); ++k) kept[names[k]] = controls.Lookup(names[k]).id;
  for (int k = 0; k < 10; ++k) {
    controls.AnnounceEverywhere("new." + std::to_string(k));
    (void)controls.CarryOut();
  }
  for (const auto& [name, id] : kept) {
    const SetSegment::NamedId found = controls.Lookup(name, 1);
    CHECK_EQ(found.id, id);
    CHECK_EQ(found.id_version, 0);
  }
  // The recycled ones come back under other ids, in the holes or behind.
  for (size_t k = 0; k < 10; ++k) {
    controls.AnnounceEverywhere(names[k]);
    CHECK(controls.CarryOut() == std::vector<Names>{{names[k]}});
    CHECK_EQ(controls.Lookup(names[k]).id_version, 1);
  }
}

// Names that make way leave nothing in the table: a miss stays as short as in a fresh one.
TEST(recycled_names_leave_their_places_free) {
  SegmentViews controls(1, Unfused());
  const auto taken = [&] {
    uint32_t names = 0;
    for (uint32_t k = 0; k < kNameSlots; ++k) names += controls.control().names().at(k) != 0;
    return names;
  };
  FillIds(controls, "first.");
  CHECK_EQ(taken(), kNamedIds);
  for (int k = 0; k < 2000; ++k) {
    controls.AnnounceEverywhere("new." + std::to_string(k));
    (void)controls.CarryOut();
  }
  CHECK_EQ(taken(), kNamedIds);
}

// More names than ids, between hosts too: what rests is recycled there as well.
TEST(names_outnumber_ids_between_hosts) {
  RunRanks(2, {{"simulated_hosts", "each"}}, [&](Engine& engine, int rank) {
    std::vector<int32_t> values(64);
    std::vector<uint64_t> handles(values.size());
    for (uint32_t k = 0; k < kNamedIds + 500; k += values.size()) {
      for (uint32_t i = 0; i < values.size(); ++i) {
        values[i] = rank;
        auto handle = engine.Submit(Make(Collective::kAllreduce, "n" + std::to_string(k + i),
                                         DType::kInt32, {1}, &values[i], &values[i]));
        if (!handle.ok()) check::Fail(__FILE__, __LINE__, handle.error().message);
        handles[i] = handle.value();
      }
      for (uint32_t i = 0; i < values.size(); ++i) {
        CHECK(WaitAndRelease(engine, handles[i]).ok());
        CHECK_EQ(values[i], 1);
      }
    }
  });
}

TEST(ranks_that_look_up_together_agree) {
  constexpr int kRanks = 4;
  constexpr int kNames = 3000;
  const SegmentViews controls(kRanks);
  std::vector<std::vector<uint32_t>> ids(kRanks, std::vector<uint32_t>(kNames));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        std::vector<int> order(kNames);
        std::iota(order.begin(), order.end(), 0);
        std::mt19937 random(rank);
        std::ranges::shuffle(order, random);
        for (const int k : order) {
          ids[rank][k] = controls.Lookup("t" + std::to_string(k), rank).id;
        }
      });
    }
  }
  for (int rank = 1; rank < kRanks; ++rank) CHECK(ids[rank] == ids[0]);
  std::ranges::sort(ids[0]);
  CHECK(std::ranges::adjacent_find(ids[0]) == ids[0].end());
  CHECK_EQ(controls.control().header().ids, kNames);
}

}  // namespace
}  // namespace horoacc::testing
