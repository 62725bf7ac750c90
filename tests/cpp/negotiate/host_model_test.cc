// The model check of a process set on several hosts: production's controllers, leaders, logs and
// root, under all schedules of what ranks do and of the messages between leaders, or under drawn
// ones where there are too many. Careless ranks and links are caught, so the model can see what it
// looks for. HOROACC_MODEL_EFFORT=10 follows ten times as many states and drawn schedules.
#include "model/host_model.h"

#include <algorithm>
#include <random>

#include "model/replay_search.h"
#include "support/check.h"
#include "support/seeds.h"
#include "support/still_clock.h"

namespace horoacc::model {
namespace {

using Search = ReplaySearch<HostModel>;

uint64_t Effort() {
  const char* const given = std::getenv("HOROACC_MODEL_EFFORT");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
}

struct Case {
  const char* name;
  HostShape shape;
  uint64_t states = 3000;  ///< at most, in the search of all schedules; 0: only drawn ones
  uint64_t drawn = 200;    ///< schedules; half of them are the same in each run
};

const std::vector<int> kTwoByTwo{2, 2}, kThree{1, 1, 1}, kTwo{1, 1};

/// The situations that a process set on several hosts must bear.
std::vector<Case> Cases() {
  const HostScript a{Submit("a")}, ab{Submit("a"), Submit("b")}, ba{Submit("b"), Submit("a")},
      aa{Submit("a"), Submit("a")}, abc{Submit("a"), Submit("b"), Submit("c")},
      abcda{Submit("a"), Submit("b"), Submit("c"), Submit("d"), Submit("a")}, join{Join()},
      a_join{Submit("a"), Join()}, a_join_b{Submit("a"), Join(), Submit("b")},
      join_b{Join(), Submit("b")}, gives_up{Submit("a"), GiveUp("a")}, asks{Submit("a"), Ask("a")},
      unnamed_join{Submit(""), Join(), Submit("")}, join_unnamed{Join(), Submit("")},
      leaves{Submit("a"), End(SetEnd::Left(3))}, removes{Submit("a"), End(SetEnd::Removed())},
      ends{Submit("a"), GiveUp("a", SetEnd::GaveUp(1))},
      rounds{Submit("a"), Submit("b"), Wait(),      Submit("a"),
             Submit("b"), Wait(),      Submit("b"), Submit("a")},
      turned{Submit("a"), Submit("b"), Wait(),      Submit("a"),
             Submit("b"), Wait(),      Submit("a"), Submit("b")},
      bucket{Submit("a"), Submit("b"), Wait(),      Submit("a"), Submit("b"),
             Wait(),      Submit("a"), Submit("b"), Wait()},
      apart{Submit("a"), Submit("b"), Wait(), Submit("a"), Submit("b"),
            Wait(),      Submit("b"), Wait(), Submit("a"), Wait()},
      parts{Submit("a"), Submit("b"), Wait(), Submit("a"), Submit("b"), Wait(),      Submit("a"),
            Wait(),      Submit("b"), Wait(), Submit("a"), Wait(),      Submit("b"), Wait()},
      together{Submit("a"), Submit("b"), Wait(), Submit("a"), Submit("b"), Wait(),
               Submit("a"), Submit("b"), Wait(), Submit("a"), Submit("b"), Wait()};
  // Rounds of a locked plan of two buckets, `last` in the place of the third one.
  const auto plan = [](HostScript last, HostScript after = {}) {
    HostScript script;
    for (int round = 0; round < 2; ++round)
      script.insert(script.end(), {Planned("a"), Planned("b"), Wait()});
    script.insert(script.end(), last.begin(), last.end());
    script.push_back(Wait());
    script.insert(script.end(), after.begin(), after.end());
    return script;
  };
  const HostScript planned = plan({Planned("a"), Planned("b")}),
                   turned_plan = plan({Planned("b"), Planned("a")}),
                   goes_on = plan({Planned("a"), Planned("b")}, {Planned("a"), Planned("b")}),
                   refuses = plan({Planned("a"), Refuse("b")}, {Planned("a"), Planned("b")}),
                   refuses_both = plan({Refuse("b"), Refuse("a")}, {Planned("a"), Planned("b")}),
                   beside = plan({Planned("a"), Submit("c"), Planned("b")}),
                   before = plan({Submit("c"), Planned("a"), Planned("b")}),
                   asks_plan = plan({Planned("a"), Ask("a"), Planned("b")}),
                   gives_plan = plan({Planned("a"), GiveUp("a"), Planned("b")}),
                   leaves_plan = plan({Planned("a"), End(SetEnd::Left(3))}),
                   joins_plan = plan({Refuse("a"), Refuse("b"), Join()}),
                   joins_too = plan({Planned("a"), Planned("b"), Submit("c"), Join()}),
                   joins_behind = plan({Planned("a"), Planned("b"), Join()});
  const auto turns = [](const std::string& requests, const HostScript& last = {}) {
    HostScript script;
    for (const char request : requests) {
      script.push_back(request == 'a' ? Recurring("a") : Changed("a"));
      script.push_back(Wait());
    }
    script.insert(script.end(), last.begin(), last.end());
    return script;
  };
  const HostScript recurs = turns("aaaa"), changes = turns("aabba"),
                   recurs_behind = turns("aaa", {Submit("c"), Recurring("a"), Wait()}),
                   recurs_before = turns("aaa", {Recurring("a"), Submit("c"), Wait()}),
                   recurs_joins = turns("aaa", {Recurring("a"), Join()});
  const auto granted = [](std::vector<int> hosts, std::vector<HostScript> scripts,
                          HostShape rest = {}) {
    rest.hosts = std::move(hosts);
    rest.scripts = std::move(scripts);
    rest.eager = false;
    rest.grants = true;
    return rest;
  };
  HostScript late = parts;
  late[3] = SubmitLate("a", 1);
  late[10] = SubmitLate("a", 2);
  return {
      {"2+2", {.hosts = kTwoByTwo, .scripts = {a, a, a, a}, .slow_rows = true}},
      {"2+2, slower than the leaders' patience",
       {.hosts = kTwoByTwo, .scripts = {a, a, a, a}, .pauses = 1}},
      {"1+1+1", {.hosts = kThree, .scripts = {a, a, a}, .slow_rows = true}},
      {"opposite orders on 2+2", {.hosts = kTwoByTwo, .scripts = {ab, ab, ba, ba}, .eager = false}},
      {"opposite orders on 1+1+1", {.hosts = kThree, .scripts = {ab, ba, ba}}},
      {"a round ahead on 2+2", {.hosts = kTwoByTwo, .scripts = {aa, aa, aa, aa}, .eager = false}},
      {"a round ahead on 1+1+1", {.hosts = kThree, .scripts = {aa, aa, aa}}},
      {"direct exchange on 1+1", {.hosts = kTwo, .scripts = {rounds, turned}}},
      {"direct exchange on 2+2", {.hosts = kTwoByTwo, .scripts = {rounds, rounds, turned, turned}}},
      {"direct exchange on 2+2, a join",
       {.hosts = kTwoByTwo,
        .scripts = {{Submit("a"), Submit("a"), Join()},
                    {Submit("a"), Submit("a"), Join()},
                    a_join,
                    {Submit("a"), Submit("a"), Join()}}}},
      {"direct exchange on 1+1, given up",
       {.hosts = kTwo,
        .scripts = {{Submit("a"), Submit("a")}, {Submit("a"), Submit("a"), GiveUp("a")}},
        .again = true}},
      {"direct exchange on 1+1, given up by the root",
       {.hosts = kTwo,
        .scripts = {{Submit("a"), Submit("a"), GiveUp("a"), Submit("a")},
                    {Submit("a"), GiveUp("a"), Submit("a"), Submit("a")}},
        .again = true}},
      {"direct exchange on 2+2, ended by the root",
       {.hosts = kTwoByTwo,
        .scripts = {{Submit("a"), Submit("a"), End(SetEnd::Left(0))}, aa, aa, aa}}},
      {"join on 2+2", {.hosts = kTwoByTwo, .scripts = {a_join, join, a_join, a_join}}},
      {"join on 2+2, a host has nothing",
       {.hosts = kTwoByTwo, .scripts = {a_join, join, join, join}, .slow_rows = true}},
      {"join on 2+2, slow rows",
       {.hosts = kTwoByTwo, .scripts = {a_join, join, a_join, join}, .slow_rows = true}},
      {"join on 2+2, and on",
       {.hosts = kTwoByTwo, .scripts = {a_join_b, join_b, a_join_b, join_b}}},
      {"join on 2+2, unnamed calls",
       {.hosts = kTwoByTwo, .scripts = {unnamed_join, join_unnamed, unnamed_join, join_unnamed}}},
      {"join on 1+1+1", {.hosts = kThree, .scripts = {a_join_b, join_b, a_join_b}}},
      {"given up on 2+2",
       {.hosts = kTwoByTwo, .scripts = {a, gives_up, a, gives_up}, .again = true}},
      {"given up on 2+2, slow rows",
       {.hosts = kTwoByTwo, .scripts = {a, gives_up, a, a}, .slow_rows = true, .again = true}},
      {"given up on 2+2, after a pause",
       {.hosts = kTwoByTwo, .scripts = {a, gives_up, a, gives_up}, .again = true, .pauses = 1}},
      {"given up on 1+1+1",
       {.hosts = kThree, .scripts = {gives_up, gives_up, gives_up}, .again = true}},
      {"questions on 2+2",
       {.hosts = kTwoByTwo, .scripts = {a, asks, a, asks}, .pauses = 2},
       3000,
       1000},
      {"questions on 1+1+1",
       {.hosts = kThree, .scripts = {a, asks, asks}, .pauses = 2},
       3000,
       1000},
      {"questions about two rounds on 1+1+1",
       {.hosts = kThree,
        .scripts = {aa,
                    {Submit("a"), Ask("a"), Submit("a"), Ask("a")},
                    {Submit("a"), Ask("a"), Submit("a"), Ask("a")}},
        .pauses = 2},
       3000,
       1000},
      {"leaving 2+2", {.hosts = kTwoByTwo, .scripts = {a, a, a, leaves}}},
      {"leaving 2+2, and removal", {.hosts = kTwoByTwo, .scripts = {removes, a, a, leaves}}},
      {"leaving 2+2, and giving up",
       {.hosts = kTwoByTwo, .scripts = {a, ends, a, {End(SetEnd::Left(3))}}}},
      {"leaving 1+1+1", {.hosts = kThree, .scripts = {a, a, {Submit("a"), End(SetEnd::Left(2))}}}},
      {"a leader dies on 2+2",
       {.hosts = kTwoByTwo, .scripts = {ab, ab, ab, ab}, .dies = {0, 2}, .eager = false}},
      {"a leader dies on 1+1+1", {.hosts = kThree, .scripts = {ab, ba, ab}, .dies = {0, 1}}},
      {"a leader dies in a direct exchange", {.hosts = kTwo, .scripts = {aa, aa}, .dies = {0, 1}}},
      {"id reuse on 2+2",
       {.hosts = kTwoByTwo,
        .scripts = {abcda, abcda, abcda, abcda},
        .late_finish = true,
        .few_ids = 2},
       1000},
      {"id reuse on 1+1+1",
       {.hosts = kThree, .scripts = {abc, abc, abc}, .late_finish = true, .few_ids = 2},
       1000},
      {"a bucket split on 2+2",
       {.hosts = kTwoByTwo, .scripts = {bucket, bucket, apart, bucket}, .eager = false},
       0},
      {"a bucket of direct calls on 2+2",
       {.hosts = kTwoByTwo, .scripts = {parts, late, parts, parts}},
       0,
       1000},
      {"a bucket of direct calls on 2+2, one host waits for each",
       {.hosts = kTwoByTwo, .scripts = {together, together, late, parts}},
       0,
       1000},
      {"a locked plan on 1+1", granted(kTwo, {planned, turned_plan})},
      {"a locked plan on 2+2", granted(kTwoByTwo, {planned, planned, turned_plan, planned})},
      {"a locked plan on 1+1+1", granted(kThree, {planned, turned_plan, planned})},
      {"a refusal on 1+1", granted(kTwo, {goes_on, refuses}), 6000, 1000},
      {"a refusal of the root on 1+1", granted(kTwo, {refuses, goes_on}), 6000, 1000},
      {"a refusal on 2+2", granted(kTwoByTwo, {goes_on, goes_on, goes_on, refuses}), 6000, 1000},
      {"a refusal of the root on 2+2", granted(kTwoByTwo, {goes_on, refuses, goes_on, goes_on})},
      {"refusals on 2+2, late finish",
       granted(kTwoByTwo, {refuses, goes_on, goes_on, refuses_both}, {.late_finish = true})},
      {"a refusal on 1+1+1", granted(kThree, {goes_on, goes_on, refuses}), 6000, 1000},
      {"refusals on 1+1+1", granted(kThree, {goes_on, refuses_both, refuses})},
      {"a refusal on 2+2, slower than the leaders' patience",
       granted(kTwoByTwo, {goes_on, goes_on, refuses, goes_on}, {.pauses = 1}), 3000, 1000},
      {"a refusal behind other hosts",
       granted({1, 1, 1, 1, 1, 1}, {goes_on, goes_on, goes_on, goes_on, goes_on, refuses}), 0},
      {"calls beside a locked plan on 2+2", granted(kTwoByTwo, {beside, before, before, beside})},
      {"calls beside a locked plan on 1+1+1", granted(kThree, {beside, before, beside})},
      {"a call that recurs on 1+1+1", granted(kThree, {recurs, recurs, recurs}), 1000, 200},
      {"a call that recurs, and another one, on 2+2",
       granted(kTwoByTwo, {recurs_behind, recurs_before, recurs_before, recurs_behind}), 1000, 200},
      {"a call that recurs with other requests on 1+1", granted(kTwo, {changes, changes}), 1000,
       200},
      {"a call that recurs with other requests on 2+2",
       granted(kTwoByTwo, {changes, changes, changes, changes}), 1000, 200},
      {"a join after a call that recurs on 1+1", granted(kTwo, {recurs_joins, recurs_joins}), 1000,
       200},
      {"questions about a locked plan on 2+2",
       granted(kTwoByTwo, {planned, asks_plan, asks_plan, planned}), 3000, 1000},
      {"a locked plan on 2+2, given up",
       granted(kTwoByTwo, {planned, gives_plan, planned, gives_plan}, {.again = true}), 3000, 1000},
      {"a locked plan on 1+1+1, given up",
       granted(kThree, {gives_plan, planned, gives_plan}, {.again = true}), 3000, 1000},
      {"leaving a locked plan on 2+2", granted(kTwoByTwo, {planned, planned, planned, leaves_plan}),
       3000, 1000},
      {"leaving a locked plan on 1+1+1", granted(kThree, {planned, leaves_plan, planned}), 3000,
       1000},
      {"join after a locked plan on 2+2",
       granted(kTwoByTwo, {joins_too, joins_plan, joins_too, joins_too})},
      {"a join that leaves rounds open on 2+2",
       granted(kTwoByTwo, {plan({Join()}), plan({Join()}), joins_behind, joins_behind})},
      {"a leader dies in a locked plan on 2+2",
       granted(kTwoByTwo, {goes_on, goes_on, goes_on, refuses}, {.dies = {0, 2}})},
      {"a bucket split on 1+1+1",
       {.hosts = kThree, .scripts = {bucket, bucket, apart}, .eager = false},
       0},
  };
}

TEST(cases) {
  for (const Case& one : Cases()) {
    HostModel model(one.shape, testing::StillClock());
    Search search(model);
    std::printf("  %s:", one.name);
    if (one.states > 0) {
      const Search::Report all = search.All(one.states * Effort());
      std::printf(" %llu states%s, longest %zu;", static_cast<unsigned long long>(all.states),
                  all.complete ? "" : " of more", all.longest);
      CHECK_EQ(all.wrong, "");
    }
    for (const uint64_t seed : {uint64_t{1}, check::SeedOfTheDay()}) {
      const Search::Report drawn = search.Walk(seed, one.drawn * Effort() / 2);
      std::printf(" %llu drawn,", static_cast<unsigned long long>(drawn.ends));
      CHECK_EQ(drawn.wrong, "");
    }
    std::printf(" %llu answers\n", static_cast<unsigned long long>(model.answers()));
    std::fflush(stdout);
  }
}

// Each mistake shows in at least one of the cases.
TEST(faults) {
  for (int fault = 1; fault < kHostFaults; ++fault) {
    std::string caught;
    for (Case& one : Cases()) {
      one.shape.fault = static_cast<HostFault>(fault);
      HostModel model(one.shape, testing::StillClock());
      const Search::Report drawn = Search(model).Walk(1, 2000);
      if (drawn.wrong.empty()) continue;
      caught = one.name;
      std::printf("  fault %d: %s: %s\n", fault, one.name,
                  drawn.wrong.substr(0, drawn.wrong.find('\n')).c_str());
      break;
    }
    if (caught.empty())
      check::Fail(__FILE__, __LINE__, "fault " + std::to_string(fault) + " is not seen");
  }
}

/// A job that ends if nothing goes wrong: in each phase all ranks submit the same names, in orders
/// of their own, or some of them and then join.
HostShape DrawShape(std::mt19937_64& random) {
  static const std::vector<std::vector<int>> kHosts{
      {2, 2}, {1, 1}, {3, 2}, {2, 1, 3}, {1, 1, 1}, {1, 1, 1, 1, 1, 1}, {1, 2, 1, 1, 1, 2}};
  const auto one_in = [&](uint64_t of) { return random() % of == 0; };
  HostShape shape;
  shape.hosts = kHosts[random() % kHosts.size()];
  int ranks = 0;
  for (const int here : shape.hosts) ranks += here;
  shape.scripts.resize(ranks);
  shape.eager = one_in(2);
  shape.slow_rows = one_in(2);
  shape.late_finish = one_in(2);
  shape.again = one_in(2);
  shape.pauses = one_in(2) ? static_cast<int>(random() % 4) : 0;
  shape.few_ids = !shape.again && one_in(3) ? 2 + static_cast<uint32_t>(random() % 2) : 0;
  if (one_in(4)) shape.dies = {static_cast<int>(random() % ranks)};
  if (one_in(3)) {
    shape.grants = true;
    shape.eager = false;
    shape.few_ids = 0;
  }
  const auto submit = [&](const std::string& name) {
    if (!shape.grants || name.empty() || one_in(8)) return Submit(name);
    return one_in(16) ? Refuse(name) : Planned(name);
  };
  const bool waits = one_in(2);
  std::vector<std::string> names{"a", "b", "c", "", "d"};
  names.resize(shape.few_ids > 0 ? shape.few_ids : 2 + random() % 4);
  if (shape.few_ids > 0 && one_in(2)) names.emplace_back();
  for (uint64_t phase = (shape.grants ? 3 : 1) + random() % 4; phase > 0; --phase) {
    const bool joins = !shape.again && one_in(3);
    std::vector<std::string> here = names;
    for (std::string& name : here) {
      if (shape.few_ids > 0 && !name.empty()) name += static_cast<char>('0' + random() % 2);
    }
    for (HostScript& script : shape.scripts) {
      if (one_in(2)) std::ranges::shuffle(here, random);
      for (const std::string& name : here) {
        if (joins && one_in(2)) continue;
        script.push_back(submit(name));
        if (one_in(8) && shape.again && !name.empty()) script.push_back(GiveUp(name));
        if (one_in(8) && !name.empty()) script.push_back(Ask(name));
      }
      if (joins) script.push_back(Join());
      if (joins && one_in(4)) script.push_back(Ask(""));
      if (waits && one_in(2)) script.push_back(Wait());
    }
  }
  for (int rank = 0; rank < ranks; ++rank) {
    if (!one_in(8)) continue;
    HostScript& script = shape.scripts[rank];
    const SetEnd end = one_in(2) ? SetEnd::Removed() : SetEnd::Left(rank);
    script.insert(script.begin() + static_cast<ptrdiff_t>(random() % (script.size() + 1)),
                  End(end));
  }
  return shape;
}

TEST(drawn_jobs) {
  for (uint64_t k = 0; k < 300 * Effort(); ++k) {
    std::mt19937_64 random(check::SeedOfTheDay() * 1000003 + k);
    const HostShape shape = DrawShape(random);
    HostModel model(shape, testing::StillClock());
    const Search::Report drawn = Search(model).Walk(k, 10);
    if (!drawn.wrong.empty()) check::Fail(__FILE__, __LINE__, Describe(shape) + "\n" + drawn.wrong);
  }
}

}  // namespace
}  // namespace horoacc::model
