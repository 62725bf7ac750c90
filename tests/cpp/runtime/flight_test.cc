// The ring of events, orders of faults, and lines made of an interpreter's stacks.
#include <atomic>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "base/events.h"
#include "base/fault.h"
#include "execute/kernels/finite.h"
#include "runtime/health/stack_source.h"
#include "support/check.h"

namespace horoacc {
namespace {

TEST(the_latest_events_are_kept_in_order) {
  EventStream events(8);
  for (uint64_t k = 0; k < 100; ++k)
    events.Emit(Phase::kError, 3, k, 2 * k, 3 * k, "tensor." + std::to_string(k), "sum");
  const auto records = events.ring().Read();
  CHECK_EQ(records.size(), size_t{8});
  for (size_t k = 0; k < records.size(); ++k) {
    CHECK_EQ(records[k].bucket, 2 * (92 + k));
    CHECK_EQ(records[k].process_set, uint32_t{3});
    CHECK_EQ(records[k].tensor, "tensor." + std::to_string(92 + k));
    CHECK_EQ(records[k].detail, std::string("sum"));
    CHECK(records[k].phase == Phase::kError);
    CHECK(k == 0 || records[k].time_ns >= records[k - 1].time_ns);
  }
}

TEST(of_a_long_name_the_end_is_kept) {
  EventStream events(2);
  events.Emit(Phase::kError, 0, 1, 1, 0, std::string(300, 'a') + "weight", std::string(40, 'b'));
  const auto records = events.ring().Read();
  CHECK_EQ(records.size(), size_t{1});
  CHECK_EQ(records[0].tensor, std::string(106, 'a') + "weight");
  CHECK_EQ(records[0].detail, std::string(16, 'b'));
}

TEST(what_was_queued_has_a_size_and_a_type) {
  EventStream events(4);
  const uint64_t call = events.Emit(Phase::kQueued, 0, 1, 0, uint64_t{1} << 40, "x", "allreduce", 0,
                                    DType::kBFloat16);
  events.Emit(Phase::kNegotiated, 0, 1, 7, 0, "x", {}, call);
  events.Emit(Phase::kQueued, 0, 2, 0, 0, "barrier", "barrier");
  const auto records = events.ring().Read();
  CHECK_EQ(records.size(), size_t{3});
  CHECK(records[0].bytes == uint64_t{1} << 40 && records[0].type == DType::kBFloat16);
  CHECK(records[1].bytes == 0 && !records[1].type);
  CHECK(records[2].bytes == 0 && !records[2].type);
}

TEST(nothing_is_kept_without_room) {
  EventStream events;
  events.Emit(Phase::kQueued, 0, 1, 1, 0, "x");
  CHECK(events.ring().Read().empty());
}

// What became of a call is told in order, wherever it was kept: calls overlap, and a record may be
// overwritten before its call is over.
TEST(the_stations_of_calls_are_told_in_order) {
  EventStream events(4);
  const uint64_t first = events.Emit(Phase::kQueued, 0, 1, 0, 0, "first", "sum");
  const uint64_t second = events.Emit(Phase::kQueued, 0, 2, 0, 0, "second", "sum");
  events.Emit(Phase::kNegotiated, 0, 2, 7, 0, "second", {}, second);
  events.Emit(Phase::kNegotiated, 0, 1, 8, 0, "first", {}, first);
  CHECK_EQ(events.Emit(Phase::kExecuted, 0, 2, 7, 0, "second", {}, second), uint64_t{0});
  CHECK(events.Emit(Phase::kError, 0, 1, 8, 0, "first", "why", first) != 0);
  const auto told = [&events] {
    std::string text;
    for (const auto& record : events.ring().Read()) {
      text += std::to_string(static_cast<int>(record.phase)) + record.tensor +
              std::to_string(record.bucket) + record.detail + " ";
    }
    return text;
  };
  CHECK_EQ(told(), std::string("0first0sum 0second0sum 1second7 1first8 3second7 5first8why "));

  for (int k = 0; k < 3; ++k) events.Emit(Phase::kQueued, 0, 3, 0, 0, "more");
  CHECK(events.Emit(Phase::kExecuted, 0, 1, 8, 0, "first", {}, first) != 0);
  CHECK_EQ(told(), std::string("0more0 0more0 0more0 3first8 "));
}

TEST(a_call_tells_how_long_callers_were_blocked_in_it) {
  EventStream events(4);
  const uint64_t call = events.Emit(Phase::kQueued, 0, 1, 0, 0, "waited", "sum");
  const uint64_t other = events.Emit(Phase::kQueued, 0, 2, 0, 0, "other", "sum");
  events.Waited(call, 3);  // in slices
  (void)events.Emit(Phase::kExecuted, 0, 1, 7, 0, "waited", {}, call);
  (void)events.Emit(Phase::kExecuted, 0, 2, 7, 0, "other", {}, other);
  events.Waited(call, 4);
  events.Waited(call + 4, 5);  // of a slot that has another call
  events.Waited(0, 6);         // of none
  for (const auto& record : events.ring().Read()) {
    const bool told = record.phase == Phase::kExecuted && record.tensor == "waited";
    CHECK_EQ(record.waited_ns, int64_t{told ? 7 : 0});
  }
}

// Stamps come from a counter, and are read as nanoseconds of the one clock.
TEST(stamps_tell_how_long_ago_it_was) {
  EventStream events(4);
  const int64_t begin = NowNs();
  events.Emit(Phase::kQueued, 0, 1, 1, 0, "x");
  while (NowNs() < begin + 50 * kMillisecond) std::this_thread::yield();
  events.Emit(Phase::kExecuted, 0, 1, 1, 0, "x");
  const auto records = events.ring().Read();
  CHECK_EQ(records.size(), size_t{2});
  const int64_t span = records[1].time_ns - records[0].time_ns;
  CHECK(span > 45 * kMillisecond && span < 60 * kSecond);
  const int64_t age = NowNs() - records[0].time_ns;
  CHECK(age > 45 * kMillisecond && age < 60 * kSecond);
}

// A record is whole or left out, however fast it is overwritten.
TEST(a_reader_sees_no_half_record) {
  EventStream events(4);
  std::atomic<bool> over{false};
  std::vector<std::thread> writers;
  for (uint64_t writer = 0; writer < 2; ++writer) {
    writers.emplace_back([&, writer] {
      const std::string name(20, static_cast<char>('a' + writer));
      const auto set = static_cast<uint32_t>(writer);
      while (!over.load()) {
        const uint64_t call = events.Emit(Phase::kQueued, set, 1, 0, 0, name);
        events.Emit(Phase::kNegotiated, set, 1, writer + 1, 0, name, {}, call);
        events.Emit(Phase::kExecuted, set, 1, writer + 1, 0, name, {}, call);
      }
    });
  }
  size_t seen = 0;
  for (int look = 0; look < 20000; ++look) {
    for (const auto& record : events.ring().Read()) {
      ++seen;
      const std::string name(20, static_cast<char>('a' + record.process_set));
      CHECK_EQ(record.tensor, name);
      CHECK_EQ(record.bucket, record.phase == Phase::kQueued ? 0 : record.process_set + 1);
    }
    if (seen == 0 && look == 19999) look = 0;  // the writers have not been on a core yet
  }
  over.store(true);
  for (std::thread& writer : writers) writer.join();
}

TEST(orders_are_read) {
  const auto order = FaultOrder::Parse("advance:3:7:sleep=0.25");
  CHECK(order.ok());
  CHECK(order.value().site == FaultSite::kAdvance && order.value().action == FaultAction::kSleep);
  CHECK_EQ(order.value().rank, 3);
  CHECK_EQ(order.value().nth, uint64_t{7});
  CHECK_EQ(order.value().seconds, 0.25);
  CHECK(FaultOrder::Parse("").ok());
  for (const char* wrong :
       {"x", "advance:1:1", "nowhere:1:1:kill", "begin:-1:1:kill", "begin:1:0:kill",
        "begin:1:1:dance", "begin:1:1:sleep", "begin:1:1:kill=3", "begin:1:1:sleep=x",
        "decide:1:1:error", "shutdown:1:1:error", "begin:1:1:kill:more"}) {
    const auto refused = FaultOrder::Parse(wrong);
    CHECK(!refused.ok() && refused.error().kind == ErrorKind::kConfig);
  }
}

TEST(the_nth_time_is_struck_and_no_other) {
  const auto order = FaultOrder::Parse("begin:1:3:error");
  FaultPoints other(order.value(), 0);
  CHECK(!other.Has(FaultSite::kBegin));
  FaultPoints points(order.value(), 1);
  CHECK(points.Has(FaultSite::kBegin) && !points.Has(FaultSite::kFinish));
  for (int time = 1; time <= 5; ++time) CHECK_EQ(points.Strike().ok(), time != 3);
}

TEST(a_stack_becomes_a_line) {
  const std::string text =
      "Thread 0x00007f (most recent call first):\n"
      "  File \"/a/b/other.py\", line 1 in wait\n"
      "\n"
      "Thread 0x00007e (most recent call first):\n"
      "  File \"/home/x/in data.py\", line 20 in load\n"
      "  File \"<string>\", line 7 in <module>\n";
  CHECK_EQ(MainStackOf(text), std::string("load (in data.py:20) < <module> (<string>:7)"));
  CHECK_EQ(MainStackOf(""), std::string());
}

TEST(numbers_that_are_none_are_found) {
  std::vector<float> floats(10'001, 1.0f);
  CHECK(!FirstNotFinite(floats.data(), DType::kFloat32, floats.size()));
  floats[10'000] = std::numeric_limits<float>::infinity();
  CHECK_EQ(*FirstNotFinite(floats.data(), DType::kFloat32, floats.size()), size_t{10'000});
  floats[4097] = std::numeric_limits<float>::quiet_NaN();
  CHECK_EQ(*FirstNotFinite(floats.data(), DType::kFloat32, floats.size()), size_t{4097});
  CHECK_EQ(*FirstNotFinite(floats.data(), DType::kComplex64, 5000), size_t{2048});
  const std::vector<double> doubles = {1, -std::numeric_limits<double>::infinity()};
  CHECK_EQ(*FirstNotFinite(doubles.data(), DType::kFloat64, 2), size_t{1});
  const std::vector<uint16_t> halves = {0x7bff, 0x7c00};
  CHECK_EQ(*FirstNotFinite(halves.data(), DType::kFloat16, 2), size_t{1});
  CHECK(!FirstNotFinite(halves.data(), DType::kBFloat16, 2));
  CHECK(!FirstNotFinite(floats.data(), DType::kInt32, floats.size()));
}

}  // namespace
}  // namespace horoacc
