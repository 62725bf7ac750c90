// Settings from text: the values that are taken and refused, and the text of a refusal.
#include "base/settings.h"

#include <array>
#include <sstream>
#include <string>
#include <vector>

#include "support/check.h"

namespace horoacc {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

Pairs DefaultPairs() {
  Pairs pairs;
  std::istringstream lines(Settings::Defaults());
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find('=');
    CHECK(at != std::string::npos && at > 0);
    pairs.emplace_back(line.substr(0, at), line.substr(at + 1));
  }
  return pairs;
}

Settings Parsed(const Pairs& pairs) {
  auto parsed = Settings::Parse(pairs);
  if (!parsed.ok()) check::Fail(__FILE__, __LINE__, parsed.error().message);
  return std::move(parsed).value();
}

void CheckRefused(const std::string& key, const std::string& value) {
  const Pairs pairs = {{key, value}};
  const auto parsed = Settings::Parse(pairs);
  if (parsed.ok()) check::Fail(__FILE__, __LINE__, key + "='" + value + "' was taken");
  CHECK(parsed.error().kind == ErrorKind::kConfig);
  CHECK(parsed.error().message.find("'" + key + "'") != std::string::npos);
  CHECK(parsed.error().message.find("'" + value + "'") != std::string::npos);
}

TEST(the_defaults_are_valid_text) {
  const Pairs defaults = DefaultPairs();
  CHECK(!defaults.empty());
  const Settings parsed = Parsed(defaults);
  const Settings plain;
  CHECK(parsed.control == plain.control);
  CHECK_EQ(parsed.fusion_threshold, plain.fusion_threshold);
  CHECK_EQ(parsed.stall_warning_seconds, plain.stall_warning_seconds);
  CHECK_EQ(parsed.stall_shutdown_seconds, plain.stall_shutdown_seconds);
  CHECK_EQ(parsed.stall_check_disable, plain.stall_check_disable);
  CHECK_EQ(parsed.timeline, plain.timeline);
  CHECK(parsed.log_level == plain.log_level);
  CHECK_EQ(parsed.start_timeout_seconds, plain.start_timeout_seconds);
  CHECK_EQ(parsed.arena_bytes, plain.arena_bytes);
  CHECK_EQ(parsed.spin_microseconds, plain.spin_microseconds);
  CHECK_EQ(parsed.window_bytes, plain.window_bytes);
  CHECK_EQ(parsed.last_arriver_bytes, plain.last_arriver_bytes);
  CHECK_EQ(parsed.reduction, plain.reduction);
  CHECK(parsed.reduce_path == plain.reduce_path);
}

TEST(every_key_is_named_once) {
  const Pairs defaults = DefaultPairs();
  for (size_t a = 0; a < defaults.size(); ++a) {
    for (size_t b = 0; b < a; ++b) CHECK(defaults[a].first != defaults[b].first);
  }
}

TEST(values_arrive_where_they_belong) {
  const Settings settings = Parsed({{"control", "tcp"},
                                    {"fusion_threshold", "18446744073709551615"},
                                    {"stall_warning_seconds", "1.5"},
                                    {"stall_shutdown_seconds", "2"},
                                    {"stall_check_disable", "1"},
                                    {"timeline", "a=b, c.json"},
                                    {"timeline_mark_cycles", "1"},
                                    {"log_level", "trace"},
                                    {"log_hide_time", "1"},
                                    {"start_timeout_seconds", "0.25"},
                                    {"arena_bytes", "4096"},
                                    {"spin_microseconds", "-1"},
                                    {"window_bytes", "65536"},
                                    {"last_arriver_bytes", "0"},
                                    {"thread_affinity", "3,1"},
                                    {"reduce_path", "staged"}});
  CHECK(settings.control == ControlKind::kTcp);
  CHECK_EQ(settings.fusion_threshold, 18446744073709551615ull);
  CHECK_EQ(settings.stall_warning_seconds, 1.5);
  CHECK_EQ(settings.stall_shutdown_seconds, 2.0);
  CHECK(settings.stall_check_disable);
  CHECK_EQ(settings.timeline, "a=b, c.json");
  CHECK(settings.timeline_mark_cycles);
  CHECK(settings.log_level == LogLevel::kTrace);
  CHECK(settings.log_hide_time);
  CHECK_EQ(settings.start_timeout_seconds, 0.25);
  CHECK_EQ(settings.arena_bytes, 4096);
  CHECK_EQ(settings.spin_microseconds, -1);
  CHECK_EQ(settings.window_bytes, 65536);
  CHECK_EQ(settings.last_arriver_bytes, 0);
  CHECK((settings.thread_affinity == std::vector<int>{3, 1}));
  CHECK(settings.reduce_path == PathKind::kStaged);
}

TEST(every_choice_has_a_name) {
  for (const char* name : {"auto", "shm", "tcp", "mpi"}) (void)Parsed({{"control", name}});
  for (const char* name : {"auto", "staged", "windows"}) (void)Parsed({{"reduce_path", name}});
  int level = 0;
  for (const char* name : {"trace", "debug", "info", "warning", "error", "fatal"}) {
    CHECK_EQ(static_cast<int>(Parsed({{"log_level", name}}).log_level), level++);
  }
}

TEST(the_last_of_equal_keys_holds) {
  CHECK_EQ(Parsed({{"window_bytes", "1"}, {"window_bytes", "2"}}).window_bytes, 2);
}

TEST(bad_values_are_refused_with_key_and_value) {
  for (const char* value : {"", "Board", "shm ", "gloo", "1"}) CheckRefused("control", value);
  for (const char* value :
       {"", "-1", "1.5", "1e6", "64M", "0x10", "x", "1 2", "--1", "18446744073709551616"}) {
    CheckRefused("fusion_threshold", value);
  }
  for (const char* value : {"", "x", "1.5", "9223372036854775808"})
    CheckRefused("spin_microseconds", value);
  for (const char* value : {"", "abc", "1s", "nan", "inf", "1e999", "1,5"}) {
    CheckRefused("stall_warning_seconds", value);
  }
  for (const char* value : {"", "true", "2", "yes", "01"})
    CheckRefused("stall_check_disable", value);
  for (const char* value : {"abc", "1,", ",1", "1,,2", "1 2", "1, 2", "-1", "1024", "1.5", "+1"}) {
    CheckRefused("thread_affinity", value);
  }
  CheckRefused("log_level", "WARN");
  for (const char* value : {"ring", "direct"}) CheckRefused("reduce_path", value);
  CheckRefused("reduction", "random");
  for (const char* value : {"-1", "65"}) CheckRefused("tcp_streams", value);
  CheckRefused("flight_events", "1048577");
}

TEST(a_refusal_names_the_possible_values) {
  for (const auto& [key, value, words] : std::vector<std::array<std::string, 3>>{
           {"control", "gloo", ": it is 'auto', 'shm', 'tcp' or 'mpi'"},
           {"reduction", "random", ": it is 'auto', 'canonical' or 'fast'"},
           {"tcp_streams", "65", ": 0 to 64 connections are possible"},
           {"heartbeat_timeout_seconds", "0.5", ": it is 0 (never) or at least 1"}}) {
    const Pairs pairs = {{key, value}};
    const auto parsed = Settings::Parse(pairs);
    CHECK(!parsed.ok());
    CHECK_EQ(parsed.error().message, "setting '" + key + "' cannot be '" + value + "'" + words);
  }
}

// All values on which ranks agree travel from one rank to another as text.
TEST(agreed_values_are_text_that_sets_them) {
  const Settings own = Parsed({{"control", "tcp"},
                               {"fusion_threshold", "18446744073709551615"},
                               {"window_bytes", "65536"},
                               {"last_arriver_bytes", "0"},
                               {"reduce_path", "staged"},
                               {"reduction", "fast"},
                               {"gpu_mode", "stream"},
                               {"gpu_chunk_bytes", "8192"},
                               {"algorithm", "double_tree, ring_all_gather"},
                               {"selection_table", "ring@1,1:10=0.5"},
                               {"transport_plugin", "/a/library.so"},
                               {"arena_bytes", "4096"}});
  Settings other;
  for (const auto& [key, value] : own.Values(Agreement::kRank0)) CHECK(other.Set(key, value).ok());
  CHECK_EQ(other.fusion_threshold, own.fusion_threshold);
  CHECK_EQ(other.window_bytes, own.window_bytes);
  CHECK_EQ(other.last_arriver_bytes, own.last_arriver_bytes);
  CHECK(other.reduce_path == own.reduce_path);
  CHECK_EQ(other.reduction, own.reduction);
  CHECK(other.gpu_mode == own.gpu_mode);
  CHECK_EQ(other.gpu_chunk_bytes, own.gpu_chunk_bytes);
  CHECK_EQ(other.algorithm, "double_tree,ring_all_gather");
  CHECK_EQ(other.selection_table, own.selection_table);
  CHECK(other.control == ControlKind::kAuto && other.arena_bytes == 0);
  CHECK((own.Values(Agreement::kSame) ==
         Pairs{{"control", "tcp"}, {"autotune", "0"}, {"link_mac", "auto"}, {"encrypt", "0"}}));
  CHECK((own.Values(Agreement::kSameUse) == Pairs{{"transport_plugin", "/a/library.so"}}));
}

// A negative time is over before it begins: a stall limit of -1 would end every job at once.
TEST(times_are_not_negative) {
  for (const char* key :
       {"stall_warning_seconds", "stall_shutdown_seconds", "start_timeout_seconds"}) {
    CheckRefused(key, "-1");
    CheckRefused(key, "-0.001");
  }
}

// Ranks look for heartbeats ten times a second: a limit below a second would be a false alarm.
TEST(heartbeat_limits_are_never_or_at_least_a_second) {
  for (const char* key : {"heartbeat_warning_seconds", "heartbeat_timeout_seconds"}) {
    CheckRefused(key, "0.5");
    CheckRefused(key, "-1");
    for (const char* value : {"0", "1", "1.5"}) Parsed({{key, value}});
  }
}

TEST(unknown_keys_are_refused) {
  for (const char* key : {"", "Control", "cycle_time", "fusion_threshold "}) {
    const Pairs pairs = {{key, "1"}};
    const auto parsed = Settings::Parse(pairs);
    CHECK(!parsed.ok());
    CHECK(parsed.error().kind == ErrorKind::kConfig);
    CHECK_EQ(parsed.error().message, std::string("unknown setting '") + key + "'");
  }
}

TEST(a_stall_ends_no_earlier_than_it_is_told) {
  (void)Parsed({{"stall_warning_seconds", "5"}, {"stall_shutdown_seconds", "5"}});
  (void)Parsed({{"stall_warning_seconds", "5"}, {"stall_shutdown_seconds", "0"}});
  const Pairs pairs = {{"stall_warning_seconds", "5"}, {"stall_shutdown_seconds", "4"}};
  const auto parsed = Settings::Parse(pairs);
  CHECK(!parsed.ok());
  CHECK(parsed.error().message.find("stall_shutdown_seconds") != std::string::npos);
  CHECK(parsed.error().message.find("stall_warning_seconds") != std::string::npos);
}

}  // namespace
}  // namespace horoacc
