#include "base/settings.h"

#include <sched.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <functional>
#include <iterator>
#include <limits>
#include <sstream>
#include <vector>

#include "base/clock.h"

namespace horoacc {
namespace {

/// A rank looks for heartbeats ten times a second at most.
constexpr double kLeastHeartbeatSeconds = 1;
constexpr uint64_t kLeastChunk = 4096;

// One row per key: how to read it into the struct and how to write it back, and what ranks agree
// on. Parsing, the defaults, errors and the agreement all walk these rows.
struct Row {
  const char* key;
  std::function<bool(const std::string&, Settings&)> read;
  std::function<std::string(const Settings&)> write;
  std::string expected = {};  ///< ends the error about a bad value; may be empty
  Agreement agreement = Agreement::kOwn;
};

Row Agreed(Agreement agreement, Row row) {
  row.agreement = agreement;
  return row;
}

template <typename Number>
Row NumberRow(const char* key, Number Settings::* field,
              Number least = std::numeric_limits<Number>::lowest(),
              Number most = std::numeric_limits<Number>::max(), std::string expected = {}) {
  return {key,
          [field, least, most](const std::string& text, Settings& settings) {
            std::istringstream stream(text);
            Number number{};
            if (!(stream >> number) || !stream.eof()) return false;
            if (std::is_unsigned_v<Number> && text.find('-') != std::string::npos) return false;
            if (!(number >= least && number <= most)) return false;
            settings.*field = number;
            return true;
          },
          [field](const Settings& settings) {
            std::ostringstream stream;
            stream << settings.*field;
            return stream.str();
          },
          std::move(expected)};
}

// 0: never.
Row SecondsRow(const char* key, double Settings::* field, double shortest = 0) {
  Row row = NumberRow(key, field, 0.0);
  if (shortest == 0) return row;
  row.expected = "it is 0 (never) or at least " + SecondsText(shortest);
  row.read = [field, shortest, read = row.read](const std::string& text, Settings& settings) {
    Settings given;
    if (!read(text, given) || (given.*field != 0 && given.*field < shortest)) return false;
    settings.*field = given.*field;
    return true;
  };
  return row;
}

Row FlagRow(const char* key, bool Settings::* field) {
  return {key,
          [field](const std::string& text, Settings& settings) {
            if (text != "0" && text != "1") return false;
            settings.*field = text == "1";
            return true;
          },
          [field](const Settings& settings) { return settings.*field ? "1" : "0"; }};
}

Row TextRow(const char* key, std::string Settings::* field) {
  return {key,
          [field](const std::string& text, Settings& settings) {
            settings.*field = text;
            return true;
          },
          [field](const Settings& settings) { return settings.*field; }};
}

// Names with commas between them; blanks are left out.
Row NamesRow(const char* key, std::string Settings::* field) {
  Row row = TextRow(key, field);
  row.read = [field](const std::string& text, Settings& settings) {
    settings.*field = text;
    std::erase_if(settings.*field, [](unsigned char c) { return std::isspace(c) != 0; });
    return true;
  };
  return row;
}

template <typename Choice>
Row ChoiceRow(const char* key, Choice Settings::* field,
              const std::vector<std::pair<const char*, Choice>>& names) {
  std::string expected = "it is ";
  for (size_t at = 0; at < names.size(); ++at) {
    if (at > 0) expected += at + 1 < names.size() ? ", " : " or ";
    expected += "'" + std::string(names[at].first) + "'";
  }
  return {key,
          [field, names](const std::string& text, Settings& settings) {
            for (const auto& [name, choice] : names) {
              if (text == name) {
                settings.*field = choice;
                return true;
              }
            }
            return false;
          },
          [field, names](const Settings& settings) -> std::string {
            for (const auto& [name, choice] : names) {
              if (settings.*field == choice) return name;
            }
            return "";
          },
          std::move(expected)};
}

// Numbers of cores with commas between them; "" for none.
Row CoresRow(const char* key, std::vector<int> Settings::* field) {
  return {key,
          [field](const std::string& text, Settings& settings) {
            std::vector<int> cores;
            for (size_t begin = 0; begin <= text.size() && !text.empty();) {
              const size_t end = std::min(text.find(',', begin), text.size());
              int core = 0;
              const auto [last, error] =
                  std::from_chars(text.data() + begin, text.data() + end, core);
              if (error != std::errc() || last != text.data() + end) return false;
              if (core < 0 || core >= CPU_SETSIZE) return false;
              cores.push_back(core);
              begin = end + 1;
            }
            settings.*field = std::move(cores);
            return true;
          },
          [field](const Settings& settings) {
            std::string text;
            for (const int core : settings.*field) {
              text += (text.empty() ? "" : ",") + std::to_string(core);
            }
            return text;
          }};
}

// An order cannot be written back; only the default is ever written.
Row FaultRow(const char* key, FaultOrder Settings::* field) {
  return {key,
          [field](const std::string& text, Settings& settings) {
            Result<FaultOrder> order = FaultOrder::Parse(text);
            if (!order.ok()) return false;
            settings.*field = order.value();
            return true;
          },
          [](const Settings&) { return std::string(); }};
}

std::vector<Row> MakeRows() {
  using enum Agreement;
  return {
      Agreed(kSame, ChoiceRow<ControlKind>("control", &Settings::control,
                                           {{"auto", ControlKind::kAuto},
                                            {"shm", ControlKind::kSegment},
                                            {"tcp", ControlKind::kTcp},
                                            {"mpi", ControlKind::kMpi}})),
      Agreed(kRank0, NumberRow("fusion_threshold", &Settings::fusion_threshold)),
      Agreed(kRank0, NumberRow("plan_rounds", &Settings::plan_rounds)),
      SecondsRow("stall_warning_seconds", &Settings::stall_warning_seconds),
      SecondsRow("stall_shutdown_seconds", &Settings::stall_shutdown_seconds),
      FlagRow("stall_check_disable", &Settings::stall_check_disable),
      SecondsRow("heartbeat_warning_seconds", &Settings::heartbeat_warning_seconds,
                 kLeastHeartbeatSeconds),
      SecondsRow("heartbeat_timeout_seconds", &Settings::heartbeat_timeout_seconds,
                 kLeastHeartbeatSeconds),
      SecondsRow("host_timeout_seconds", &Settings::host_timeout_seconds),
      FlagRow("check_numerics", &Settings::check_numerics),
      TextRow("timeline", &Settings::timeline),
      FlagRow("timeline_mark_cycles", &Settings::timeline_mark_cycles),
      ChoiceRow<LogLevel>("log_level", &Settings::log_level,
                          {{"trace", LogLevel::kTrace},
                           {"debug", LogLevel::kDebug},
                           {"info", LogLevel::kInfo},
                           {"warning", LogLevel::kWarning},
                           {"error", LogLevel::kError},
                           {"fatal", LogLevel::kFatal}}),
      FlagRow("log_hide_time", &Settings::log_hide_time),
      SecondsRow("start_timeout_seconds", &Settings::start_timeout_seconds),
      NumberRow("arena_bytes", &Settings::arena_bytes),
      NumberRow("spin_microseconds", &Settings::spin_microseconds),
      Agreed(kRank0, NumberRow("window_bytes", &Settings::window_bytes)),
      Agreed(kRank0, NumberRow("last_arriver_bytes", &Settings::last_arriver_bytes)),
      Agreed(kSame, FlagRow("autotune", &Settings::autotune)),
      Agreed(kRank0, ChoiceRow<std::string>(
                         "reduction", &Settings::reduction,
                         {{"auto", "auto"}, {"canonical", "canonical"}, {"fast", "fast"}})),
      CoresRow("thread_affinity", &Settings::thread_affinity),
      Agreed(kRank0, ChoiceRow<PathKind>("reduce_path", &Settings::reduce_path,
                                         {{"auto", PathKind::kAuto},
                                          {"staged", PathKind::kStaged},
                                          {"windows", PathKind::kWindows}})),
      TextRow("network_interfaces", &Settings::network_interfaces),
      NumberRow("tcp_streams", &Settings::tcp_streams, 0, 64, "0 to 64 connections are possible"),
      NumberRow("socket_buffer_bytes", &Settings::socket_buffer_bytes),
      FlagRow("tcp_checksums", &Settings::tcp_checksums),
      Agreed(kSame, ChoiceRow<LinkMac>("link_mac", &Settings::link_mac,
                                       {{"auto", LinkMac::kAuto},
                                        {"aes-gcm", LinkMac::kAesGcm},
                                        {"hmac-sha256", LinkMac::kHmacSha256},
                                        {"none", LinkMac::kNone}})),
      Agreed(kSame, FlagRow("encrypt", &Settings::encrypt)),
      TextRow("crypto_library", &Settings::crypto_library),
      Agreed(kSameUse, TextRow("transport_plugin", &Settings::transport_plugin)),
      TextRow("cuda_plugin", &Settings::cuda_plugin),
      Agreed(kRank0, ChoiceRow<GpuMode>("gpu_mode", &Settings::gpu_mode,
                                        {std::begin(kGpuModes), std::end(kGpuModes)})),
      TextRow("nccl_library", &Settings::nccl_library),
      Agreed(kRank0, NumberRow("gpu_chunk_bytes", &Settings::gpu_chunk_bytes)),
      Agreed(kRank0, NamesRow("algorithm", &Settings::algorithm)),
      Agreed(kRank0, TextRow("selection_table", &Settings::selection_table)),
      TextRow("flight_dir", &Settings::flight_dir),
      NumberRow("flight_events", &Settings::flight_events, uint64_t{0}, uint64_t{1} << 20,
                "it is at most 1048576"),
      FaultRow("fault", &Settings::fault),
      TextRow("simulated_hosts", &Settings::simulated_hosts),
  };
}

const std::vector<Row>& Rows() {
  static const std::vector<Row> rows = MakeRows();
  return rows;
}

}  // namespace

Status Settings::Set(const std::string& key, const std::string& value) {
  const auto row = std::ranges::find(Rows(), key, &Row::key);
  if (row == Rows().end()) {
    return MakeError(ErrorKind::kConfig, "unknown setting '" + key + "'");
  }
  if (row->read(value, *this)) return {};
  return MakeError(ErrorKind::kConfig, "setting '" + key + "' cannot be '" + value + "'" +
                                           (row->expected.empty() ? "" : ": ") + row->expected);
}

std::vector<std::pair<std::string, std::string>> Settings::Values(Agreement agreement) const {
  std::vector<std::pair<std::string, std::string>> values;
  for (const Row& row : Rows()) {
    if (row.agreement == agreement) values.emplace_back(row.key, row.write(*this));
  }
  return values;
}

Result<Settings> Settings::Parse(std::span<const std::pair<std::string, std::string>> pairs) {
  Settings settings;
  for (const auto& [key, value] : pairs) HA_TRY(settings.Set(key, value));
  settings.gpu_chunk_bytes = std::max(settings.gpu_chunk_bytes, kLeastChunk);
  if (settings.stall_shutdown_seconds > 0 &&
      settings.stall_shutdown_seconds < settings.stall_warning_seconds) {
    return MakeError(ErrorKind::kConfig,
                     "setting 'stall_shutdown_seconds' must not be below 'stall_warning_seconds'");
  }
  return settings;
}

std::string Settings::Defaults() {
  std::string text;
  const Settings defaults;
  for (const Row& row : Rows()) text += std::string(row.key) + "=" + row.write(defaults) + "\n";
  return text;
}

}  // namespace horoacc
