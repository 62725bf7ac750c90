// The model check of a process set on several hosts: production's controllers, leaders, logs and
// root, under all schedules of what ranks do and of the messages between leaders, or under drawn
// ones where there are too many. Careless ranks and links are caught, so the model can see what it
// looks for. HOROACC_MODEL_EFFORT=10 follows ten times as many states and drawn schedules.
#include "model/host_model_impl.h"

#include "model/replay_search.h"
#include "support/check.h"
#include "support/seeds.h"

namespace horoacc::model {
namespace {

uint64_t Effort() {
  const char* const given = std::getenv("HOROACC_MODEL_EFFORT");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
}

struct Case {
  const char* what;
  HostShape shape;
  uint64_t states = 0;  ///< at most; 0: only drawn schedules
  uint64_t walks = 0;
};

void Run(const Case& one) {
  HostModel model(one.shape);
  ReplaySearch search(model);
  std::printf("  %s:", one.what);
  if (one.states > 0) {
    const auto all = search.All(one.states * Effort());
    std::printf(" %s%llu states, %llu ends, %llu actions, longest %zu", all.complete ? "" : "of more ",
                static_cast<unsigned long long>(all.states),
                static_cast<unsigned long long>(all.ends),
                static_cast<unsigned long long>(all.actions), all.longest);
    CHECK_EQ(all.wrong, "");
  }
  if (one.walks > 0) {
    for (const uint64_t seed : {uint64_t{1}, check::SeedOfTheDay()}) {
      const auto drawn = search.Walk(seed, one.walks * Effort() / 2);
      std::printf(" + %llu drawn, longest %zu", static_cast<unsigned long long>(drawn.ends),
                  drawn.longest);
      CHECK_EQ(drawn.wrong, "");
    }
  }
  std::printf("%s\n", model.answers() > 0 ? (" " + std::to_string(model.answers()) + " answers").c_str() : "");
  std::fflush(stdout);
}

const std::vector<int> kTwoByTwo{2, 2}, kThree{1, 1, 1};


/// A job that ends if nothing goes wrong: in each phase all ranks submit the same names, in orders
/// of their own, or some of them and then join.
HostShape DrawShape(std::mt19937_64& random) {
  static const std::vector<std::vector<int>> kHosts{{2, 2}, {2, 1, 3}, {1, 1, 1}, {3, 2}, {1, 1, 1, 1, 1, 1}, {1, 2, 1, 1, 1, 2}};
  const auto flip = [&](uint64_t of) { return random() % of == 0; };
  HostShape shape;
  shape.hosts = kHosts[random() % kHosts.size()];
  int ranks = 0;
  for (const int here : shape.hosts) ranks += here;
  shape.scripts.resize(ranks);
  shape.eager = flip(2) && shape.hosts.size() != 2;
  shape.slow_rows = flip(2);
  shape.late_finish = flip(2);
  shape.again = flip(2);
  shape.pauses = flip(2) ? static_cast<int>(random() % 4) : 0;
  shape.few_ids = !shape.again && flip(3) ? 2 + static_cast<uint32_t>(random() % 2) : 0;
  if (flip(4)) shape.dies = {static_cast<int>(random() % ranks)};
  const bool waits = flip(2);
  std::vector<std::string> names{"a", "b", "c", "", "d"};
  names.resize(shape.few_ids > 0 ? shape.few_ids : 2 + random() % 4);
  if (shape.few_ids > 0 && flip(2)) names.push_back("");
  for (uint64_t phase = 1 + random() % 4; phase > 0; --phase) {
    const bool joins = !shape.again && flip(3);
    std::vector<std::string> here = names;
    if (shape.few_ids > 0) {
      for (std::string& name : here) {
        if (!name.empty()) name += static_cast<char>('0' + random() % 2);
      }
    }
    for (HostScript& script : shape.scripts) {
      if (flip(2)) std::ranges::shuffle(here, random);
      for (const std::string& name : here) {
        if (joins && flip(2)) continue;
        script.push_back(Submit(name));
        if (flip(8) && shape.again && !name.empty()) script.push_back(GiveUp(name));
        if (flip(8) && !name.empty()) script.push_back(Ask(name));
      }
      if (joins) script.push_back(Join());
      if (joins && flip(4)) script.push_back(Ask(""));
      if (waits && flip(2)) script.push_back(Wait());
    }
  }
  for (int rank = 0; rank < ranks; ++rank) {
    if (!flip(8)) continue;
    HostScript& script = shape.scripts[rank];
    const SetEnd end = flip(2) ? SetEnd::Removed() : SetEnd::Left(rank);
    script.insert(script.begin() + static_cast<ptrdiff_t>(random() % (script.size() + 1)), End(end));
  }
  return shape;
}

TEST(drawn) {
  for (uint64_t k = 0; k < 300 * Effort(); ++k) {
    std::mt19937_64 random(check::SeedOfTheDay() * 1000003 + k);
    const HostShape shape = DrawShape(random);
    HostModel model(shape);
    const auto drawn = ReplaySearch(model).Walk(k, 10);
    if (!drawn.wrong.empty()) {
      std::printf("shape %llu hosts %zu eager %d slow %d late %d again %d pauses %d few %u dies %zu\n", (unsigned long long)k, shape.hosts.size(), shape.eager, shape.slow_rows, shape.late_finish, shape.again, shape.pauses, shape.few_ids, shape.dies.size());
      for (auto& sc : shape.scripts) { for (auto& st : sc) std::printf(" %d:%s", (int)st.kind, st.name.c_str()); std::printf("\n"); }
    }
    CHECK_EQ(drawn.wrong, "");
  }
}

TEST(cases) {
  const HostScript a{Submit("a")}, ab{Submit("a"), Submit("b")}, ba{Submit("b"), Submit("a")},
      aa{Submit("a"), Submit("a")}, abc{Submit("a"), Submit("b"), Submit("c")},
      join{Join()}, aj{Submit("a"), Join()}, ajb{Submit("a"), Join(), Submit("b")},
      jb{Join(), Submit("b")}, ag{Submit("a"), GiveUp("a")}, aq{Submit("a"), Ask("a")},
      l3{End(SetEnd::Left(3))}, uju{Submit(""), Join(), Submit("")}, ju{Join(), Submit("")};
  const HostScript w{Submit("a"),Submit("b"),Wait(),Submit("a"),Submit("b"),Wait(),Submit("a"),Submit("b"),Wait()};
  const HostScript x{Submit("a"),Submit("b"),Wait(),Submit("a"),Submit("b"),Wait(),Submit("b"),Wait(),Submit("a"),Wait()};
  const uint64_t n = 20000, m=400;
  for (const Case& one : {
           Case{"2x2, slow rows", {.hosts = kTwoByTwo, .scripts = {a, a, a, a}, .slow_rows = true}, n,m},
           Case{"1+1+1, slow rows", {.hosts = kThree, .scripts = {a, a, a}, .slow_rows = true}, n,m},
           Case{"2x2, a pause", {.hosts = kTwoByTwo, .scripts = {a, a, a, a}, .pauses = 1}, n,m},
           Case{"2x2, opposite", {.hosts = kTwoByTwo, .scripts = {ab,ab,ba,ba}}, n,m},
           Case{"3x1, opposite", {.hosts = kThree, .scripts = {ab,ba,ba}}, n,m},
           Case{"2x2, ahead", {.hosts = kTwoByTwo, .scripts = {aa,aa,aa,aa}}, n,m},
           Case{"3x1, ahead", {.hosts = kThree, .scripts = {aa,aa,aa}}, n,m},
           Case{"2x2, join", {.hosts = kTwoByTwo, .scripts = {aj,join,aj,aj}}, n,m},
           Case{"2x2, join slow", {.hosts = kTwoByTwo, .scripts = {aj,join,aj,join}, .slow_rows=true}, n,m},
           Case{"2x2, join and on", {.hosts = kTwoByTwo, .scripts = {ajb,jb,ajb,jb}}, n,m},
           Case{"2x2, join and on, unnamed", {.hosts = kTwoByTwo, .scripts = {uju,ju,uju,ju}}, n,m},
           Case{"3x1, join", {.hosts = kThree, .scripts = {ajb,jb,ajb}}, n,m},
           Case{"2x2, give up", {.hosts = kTwoByTwo, .scripts = {a,ag,a,a},.again=true}, n,m},
           Case{"2x2, give up slow", {.hosts = kTwoByTwo, .scripts = {a,ag,a,a},.slow_rows=true,.again=true}, n,m},
           Case{"2x2, give up twice", {.hosts = kTwoByTwo, .scripts = {a,ag,a,ag},.again=true,}, n,m},
           Case{"3x1, give up", {.hosts = kThree, .scripts = {ag,ag,ag},.again=true,}, n,m},
           Case{"2x2, give up pause", {.hosts = kTwoByTwo, .scripts = {a,ag,a,ag},.again=true,.pauses=1}, n,m},
           Case{"2x2, ask", {.hosts = kTwoByTwo, .scripts = {a,aq,a,aq},.pauses=2}, n,10*m},
           Case{"3x1, ask", {.hosts = kThree, .scripts = {a,aq,aq},.pauses=2}, n,10*m},
           Case{"2x2, end", {.hosts = kTwoByTwo, .scripts = {a,a,a,{Submit("a"),End(SetEnd::Left(3))}}}, n,m},
           Case{"2x2, removed by two", {.hosts = kTwoByTwo, .scripts = {{Submit("a"),End(SetEnd::Removed())},a,a,{Submit("a"),End(SetEnd::Left(3))}}}, n,m},
           Case{"2x2, gave up", {.hosts = kTwoByTwo, .scripts = {a,{Submit("a"),{HostStep::Kind::kGiveUp,"a",SetEnd::GaveUp(1)}},a,l3}}, n,m},
           Case{"3x1, end", {.hosts = kThree, .scripts = {a,a,{Submit("a"),End(SetEnd::Left(2))}}}, n,m},
           Case{"2x2, dies", {.hosts = kTwoByTwo, .scripts = {ab,ab,ab,ab},.dies={0,2}}, n,m},
           Case{"2x2, ids", {.hosts = kTwoByTwo, .scripts = {abc,abc,abc,abc},.late_finish=true,.few_ids=2}, n/10,m},
           Case{"3x1, ids", {.hosts = kThree, .scripts = {abc,abc,abc},.late_finish=true,.few_ids=2}, n/10,m},
           Case{"2x2, bucket", {.hosts = kTwoByTwo, .scripts = {w,w,x,w}}, 0,m},
           Case{"3x1, bucket", {.hosts = kThree, .scripts = {w,w,x}}, 0,m},
       })
    Run(one);
}

}  // namespace
}  // namespace horoacc::model
