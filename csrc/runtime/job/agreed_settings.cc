#include "runtime/job/agreed_settings.h"

#include <array>
#include <cctype>
#include <sstream>
#include <string>
#include <vector>

#include "base/log.h"
#include "schedule/measured.h"

namespace horoacc {
namespace {

constexpr const char* kNone = "-";  // in the place of an empty text
constexpr std::array kControls = {"auto", "shm", "tcp", "mpi"};

// Without blanks, so that it travels as one word.
std::string Word(std::string text) {
  std::erase_if(text, [](unsigned char c) { return std::isspace(c) != 0; });
  return text.empty() ? std::string(kNone) : text;
}

// A table that cannot be read is told of once, and the job does without.
std::string ReadableTable(const Settings& settings) {
  if (settings.selection_table.empty()) return {};
  const auto table = schedule::MeasuredTable::Parse(settings.selection_table);
  if (table.ok()) return settings.selection_table;
  Log(0, settings.log_level, settings.log_hide_time)
      .Write(LogLevel::kWarning, "the table of measured algorithms is ignored: " +
                                     table.error().message + "; `horoaccrun tune` makes a new one");
  return {};
}

}  // namespace

Result<Settings> AgreeOnSettings(Settings settings, Bootstrap& bootstrap, int64_t deadline_ns) {
  std::ostringstream mine;
  mine << settings.fusion_threshold << ' ' << settings.window_bytes << ' '
       << settings.last_arriver_bytes << ' ' << static_cast<int>(settings.reduce_path) << ' '
       << settings.reduction << ' ' << static_cast<int>(settings.gpu_mode) << ' '
       << settings.gpu_chunk_bytes << ' ' << Word(settings.algorithm) << ' '
       << Word(bootstrap.rank() == 0 ? ReadableTable(settings) : std::string());
  HA_ASSIGN(const std::vector<std::string> all, bootstrap.AllGather(mine.str(), deadline_ns));
  std::istringstream rank0(all[0]);
  int path = 0;
  int gpu_mode = 0;
  rank0 >> settings.fusion_threshold >> settings.window_bytes >> settings.last_arriver_bytes >>
      path >> settings.reduction >> gpu_mode >> settings.gpu_chunk_bytes >> settings.algorithm >>
      settings.selection_table;
  if (!rank0) return MakeError(ErrorKind::kConfig, "rank 0's settings cannot be read", 0);
  settings.reduce_path = static_cast<PathKind>(path);
  settings.gpu_mode = static_cast<GpuMode>(gpu_mode);
  for (std::string* text : {&settings.algorithm, &settings.selection_table}) {
    if (*text == kNone) text->clear();
  }
  return settings;
}

Status CheckAlike(const Settings& settings, const std::string& version, Bootstrap& bootstrap,
                  int64_t deadline_ns) {
  const std::string control = kControls[static_cast<size_t>(settings.control)];
  // Where the library lies is each host's own affair.
  const std::string plugin = settings.transport_plugin.empty() ? "" : "a library";
  HA_ASSIGN(const std::vector<std::string> all,
            bootstrap.AllGather(version + "\n" + control + "\n" + plugin, deadline_ns));
  const auto field = [&](int rank, int index) {
    std::istringstream lines(all[rank]);
    std::string line;
    for (int k = 0; k <= index; ++k) std::getline(lines, line);
    return line;
  };
  const std::array names = {"HoroACC's version", "setting 'control'", "setting 'transport_plugin'"};
  for (int rank = 1; rank < static_cast<int>(all.size()); ++rank) {
    for (int index = 0; index < static_cast<int>(names.size()); ++index) {
      if (field(rank, index) == field(0, index)) continue;
      return MakeError(ErrorKind::kConfig,
                       std::string(names[index]) + " differs: rank 0 has '" + field(0, index) +
                           "', rank " + std::to_string(rank) + " has '" + field(rank, index) + "'",
                       rank);
    }
  }
  return {};
}

}  // namespace horoacc
