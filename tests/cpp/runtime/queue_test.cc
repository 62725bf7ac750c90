// What a rank remembers of its calls and of names.
#include "base/few.h"
#include "queue/set_queue.h"
#include "runtime/engine/handles.h"
#include "support/check.h"

namespace horoacc {
namespace {

std::shared_ptr<CollectiveEntry> WithId(uint32_t id) {
  auto entry = std::make_shared<CollectiveEntry>();
  entry->id = id;
  return entry;
}

TEST(entries_in_flight_are_found_and_leave) {
  InFlight in_flight;
  const auto a = WithId(3);
  const auto b = WithId(7);
  const auto c = WithId(5);
  for (const auto& entry : {a, b, c}) in_flight.Insert(entry);
  in_flight.Erase(*a);
  CHECK(!in_flight.Contains(3));
  CHECK(in_flight.Find(7) == b);
  CHECK_EQ(in_flight.ids().size(), 2);
  in_flight.Erase(*c);
  in_flight.Erase(*b);
  CHECK(in_flight.ids().empty());
}

// An entry of the backlog ends (its process set has ended) while an earlier call with its id runs.
TEST(the_end_of_a_call_that_waits_leaves_the_one_before_it) {
  InFlight in_flight;
  const auto runs = WithId(4);
  const auto waits = WithId(4);
  in_flight.Insert(runs);
  in_flight.Erase(*waits);
  CHECK(in_flight.Find(4) == runs);
  in_flight.Erase(*runs);
  CHECK(!in_flight.Contains(4));
}

TEST(names_that_nobody_uses_are_swept) {
  Names names;
  NameRecord& held = names.Find("held");
  held.held_by = 1;
  NameRecord& running = names.Find("running");
  running.calls = 1;
  for (size_t k = 0; k < 5 * Names::kSweepAt; ++k) {
    names.Find("n" + std::to_string(k)).known = true;
    CHECK(names.size() <= Names::kSweepAt);
  }
  CHECK(&names.Find("held") == &held);
  CHECK(&names.Find("running") == &running);
}

TEST(submissions_find_their_names_in_any_order) {
  Names names;
  const std::vector<std::string> orders[] = {{"a", "b", "c"}, {"a", "b", "c"}, {"a", "c", "b"},
                                             {"c"},           {"a", "a", "d"}, {"a", "b", "c"}};
  for (const auto& order : orders) {
    for (const std::string& name : order) {
      NameRecord& record = names.Submitted(name);
      CHECK(&record == &names.Find(name));
      if (const NameRecord* const next = names.Prefetched()) CHECK(next->calls <= 1);
    }
  }
  // What is swept away follows nothing any more.
  for (size_t k = 0; k < 2 * Names::kSweepAt; ++k) {
    const std::string name = std::to_string(k);
    CHECK(&names.Submitted(name) == &names.Find(name));
  }
  NameRecord& again = names.Submitted("a");
  CHECK(&again == &names.Find("a"));
}

TEST(handles_are_found_until_they_are_removed) {
  Handles handles;
  const auto kept = WithId(1);
  const uint64_t first = handles.Add(kept);
  for (uint32_t k = 0; k < 1000; ++k) {
    const auto entry = WithId(k);
    const uint64_t handle = handles.Add(entry);
    CHECK(handles.Find(handle) == entry);
    CHECK(handles.Find(handle + 1) == nullptr);
    if (k % 3 != 0) CHECK(handles.Remove(handle) == entry);
    CHECK(handles.Find(handle) == (k % 3 != 0 ? nullptr : entry));
  }
  CHECK(handles.Remove(first) == kept);
  CHECK(handles.Remove(first) == nullptr);
  for (uint64_t handle = first + 1; handle <= first + 1000; ++handle) (void)handles.Remove(handle);
  CHECK_EQ(handles.Add(kept), first + 1001);
  CHECK(handles.Find(first + 1001) == kept);
}

TEST(a_list_of_few_keeps_its_elements_when_it_grows) {
  Few<std::string> few;
  CHECK(few.empty());
  for (const char* const word : {"one", "two", "three"}) few.push_back(word);
  CHECK(few == Few<std::string>({"one", "two", "three"}));
  CHECK(Few<std::string>({"one"}) == Few<std::string>({"one"}));
  Few<std::string> roomy;
  roomy.reserve(2);
  roomy.push_back("one");
  CHECK(roomy == Few<std::string>({"one"}));
  CHECK(!(roomy == few));
  const Few<std::string> moved = few;
  CHECK_EQ(moved.size(), 3);
  CHECK(moved[2] == "three" && moved.front() == "one");
  for (const size_t size : {0, 1, 3, 2, 1, 0, 2}) {
    roomy.resize(size);
    CHECK_EQ(roomy.size(), size);
    few.clear();
    few.resize(size);
    CHECK_EQ(few.size(), size);
  }
}

}  // namespace
}  // namespace horoacc
