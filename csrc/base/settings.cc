#include "base/settings.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <iterator>
#include <sstream>
#include <vector>

namespace horoacc {
namespace {

constexpr uint64_t kMostFlightEvents = 1 << 20;
/// Others look for signs of life ten times a second at most.
constexpr double kLeastSilenceSeconds = 1;
constexpr uint64_t kLeastChunk = 4096;

// One row per key: how to read it into the struct and how to write it back. Parse and Defaults
// walk the same rows, so a key cannot be known to one and not the other.
struct Row {
  const char* key;
  std::function<bool(const std::string&, Settings&)> read;
  std::function<std::string(const Settings&)> write;
};

template <typename Number>
Row NumberRow(const char* key, Number Settings::* field) {
  return {key,
          [field](const std::string& text, Settings& settings) {
            std::istringstream stream(text);
            Number number{};
            if (!(stream >> number) || !stream.eof()) return false;
            if (std::is_unsigned_v<Number> && text.find('-') != std::string::npos) return false;
            settings.*field = number;
            return true;
          },
          [field](const Settings& settings) {
            std::ostringstream stream;
            stream << settings.*field;
            return stream.str();
          }};
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

template <typename Choice>
Row ChoiceRow(const char* key, Choice Settings::* field,
              const std::vector<std::pair<const char*, Choice>>& names) {
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
          }};
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

// The order itself cannot be written back, but nobody asks for more than the default.
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

std::vector<Row> Rows() {
  return {
      ChoiceRow<ControlKind>("control", &Settings::control,
                             {{"auto", ControlKind::kAuto},
                              {"shm", ControlKind::kSegment},
                              {"board", ControlKind::kSegment},  // former name
                              {"tcp", ControlKind::kTcp},
                              {"mpi", ControlKind::kMpi}}),
      NumberRow("fusion_threshold", &Settings::fusion_threshold),
      NumberRow("stall_warning_seconds", &Settings::stall_warning_seconds),
      NumberRow("stall_shutdown_seconds", &Settings::stall_shutdown_seconds),
      FlagRow("stall_check_disable", &Settings::stall_check_disable),
      NumberRow("silence_warning_seconds", &Settings::silence_warning_seconds),
      FlagRow("check_numerics", &Settings::check_numerics),
      NumberRow("hang_limit_seconds", &Settings::hang_limit_seconds),
      NumberRow("host_timeout_seconds", &Settings::host_timeout_seconds),
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
      NumberRow("start_timeout_seconds", &Settings::start_timeout_seconds),
      NumberRow("arena_bytes", &Settings::arena_bytes),
      NumberRow("spin_microseconds", &Settings::spin_microseconds),
      NumberRow("window_bytes", &Settings::window_bytes),
      NumberRow("last_arriver_bytes", &Settings::last_arriver_bytes),
      TextRow("reduction", &Settings::reduction),
      CoresRow("thread_affinity", &Settings::thread_affinity),
      ChoiceRow<PathKind>("reduce_path", &Settings::reduce_path,
                          {{"auto", PathKind::kAuto},
                           {"staged", PathKind::kStaged},
                           {"windows", PathKind::kWindows}}),
      TextRow("network_interfaces", &Settings::network_interfaces),
      NumberRow("tcp_streams", &Settings::tcp_streams),
      NumberRow("socket_buffer_bytes", &Settings::socket_buffer_bytes),
      FlagRow("tcp_checksums", &Settings::tcp_checksums),
      TextRow("transport_plugin", &Settings::transport_plugin),
      TextRow("cuda_plugin", &Settings::cuda_plugin),
      ChoiceRow<GpuMode>("gpu_mode", &Settings::gpu_mode,
                         {std::begin(kGpuModes), std::end(kGpuModes)}),
      TextRow("nccl_library", &Settings::nccl_library),
      NumberRow("gpu_chunk_bytes", &Settings::gpu_chunk_bytes),
      TextRow("algorithm", &Settings::algorithm),
      TextRow("selection_table", &Settings::selection_table),
      TextRow("flight_dir", &Settings::flight_dir),
      NumberRow("flight_events", &Settings::flight_events),
      FaultRow("fault", &Settings::fault),
      TextRow("parted_hosts", &Settings::simulated_hosts),
  };
}

std::string SecondsText(double seconds) {
  std::ostringstream text;
  text << seconds;
  return text.str();
}

}  // namespace

Result<Settings> Settings::Parse(std::span<const std::pair<std::string, std::string>> pairs) {
  Settings settings;
  const std::vector<Row> rows = Rows();
  for (const auto& [key, value] : pairs) {
    bool known = false;
    for (const Row& row : rows) {
      if (key != row.key) continue;
      known = true;
      if (!row.read(value, settings)) {
        return MakeError(ErrorKind::kConfig, "setting '" + key + "' cannot be '" + value + "'");
      }
    }
    if (!known) return MakeError(ErrorKind::kConfig, "unknown setting '" + key + "'");
  }
  if (settings.reduction != "auto" && settings.reduction != "canonical" &&
      settings.reduction != "fast") {
    return MakeError(ErrorKind::kConfig, "setting 'reduction' cannot be '" + settings.reduction +
                                             "': it is 'auto', 'canonical' or 'fast'");
  }
  settings.gpu_chunk_bytes = std::max(settings.gpu_chunk_bytes, kLeastChunk);
  if (settings.flight_events > kMostFlightEvents) {
    return MakeError(ErrorKind::kConfig, "setting 'flight_events' cannot be '" +
                                             std::to_string(settings.flight_events) +
                                             "': at most " + std::to_string(kMostFlightEvents));
  }
  if (settings.tcp_streams < 0 || settings.tcp_streams > 64) {
    return MakeError(ErrorKind::kConfig, "setting 'tcp_streams' cannot be '" +
                                             std::to_string(settings.tcp_streams) +
                                             "': 0 to 64 connections are possible");
  }
  for (const auto& [key, seconds] :
       {std::pair("stall_warning_seconds", settings.stall_warning_seconds),
        std::pair("stall_shutdown_seconds", settings.stall_shutdown_seconds),
        std::pair("silence_warning_seconds", settings.silence_warning_seconds),
        std::pair("hang_limit_seconds", settings.hang_limit_seconds),
        std::pair("host_timeout_seconds", settings.host_timeout_seconds),
        std::pair("start_timeout_seconds", settings.start_timeout_seconds)}) {
    if (!(seconds >= 0)) {
      return MakeError(ErrorKind::kConfig, "setting '" + std::string(key) + "' cannot be '" +
                                               SecondsText(seconds) + "'");
    }
  }
  for (const auto& [key, seconds] :
       {std::pair("silence_warning_seconds", settings.silence_warning_seconds),
        std::pair("hang_limit_seconds", settings.hang_limit_seconds)}) {
    if (seconds > 0 && seconds < kLeastSilenceSeconds) {
      return MakeError(ErrorKind::kConfig,
                       "setting '" + std::string(key) + "' cannot be '" + SecondsText(seconds) +
                           "': it is 0 (never) or at least " + SecondsText(kLeastSilenceSeconds));
    }
  }
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
