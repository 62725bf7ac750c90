// What a rank remembers of its calls and of names.
#include "queue/set_queue.h"
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

}  // namespace
}  // namespace horoacc
