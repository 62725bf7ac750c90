#include "runtime/job/agreed_settings.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "schedule/measured.h"

namespace horoacc {
namespace {

using Values = std::vector<std::pair<std::string, std::string>>;

constexpr char kEnd = '\0';  // no value has it: values come from variables and command lines

std::string Encode(const Values& values) {
  std::string text;
  for (const auto& [key, value] : values) text += key + '=' + value + kEnd;
  return text;
}

Values Decode(const std::string& text) {
  Values values;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line, kEnd);) {
    const size_t at = std::min(line.find('='), line.size() - 1);
    values.emplace_back(line.substr(0, at), line.substr(at + 1));
  }
  return values;
}

// Rank 0 warns of a table that cannot be read, and the job does without it.
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
  settings.selection_table = bootstrap.rank() == 0 ? ReadableTable(settings) : std::string();
  HA_ASSIGN(const std::string rank0,
            bootstrap.Broadcast(Encode(settings.Values(Agreement::kRank0)), deadline_ns));
  for (const auto& [key, value] : Decode(rank0)) {
    if (const Status set = settings.Set(key, value); !set.ok()) {
      return MakeError(ErrorKind::kConfig, "of rank 0: " + set.error().message, 0);
    }
  }
  return settings;
}

Status CheckAlike(const Settings& settings, const std::string& version, Bootstrap& bootstrap,
                  int64_t deadline_ns) {
  Values own = {{"HoroACC's version", version}};
  for (const auto& [key, value] : settings.Values(Agreement::kSame)) {
    own.emplace_back("setting '" + key + "'", value);
  }
  for (const auto& [key, value] : settings.Values(Agreement::kSameUse)) {
    own.emplace_back("setting '" + key + "'", value.empty() ? "" : "a library");
  }
  const auto compare = [](const std::vector<std::string>& all) -> Result<std::vector<std::string>> {
    const Values rank0 = Decode(all[0]);
    for (int rank = 1; rank < std::ssize(all); ++rank) {
      const Values theirs = Decode(all[rank]);
      for (size_t at = 0; at < std::min(rank0.size(), theirs.size()); ++at) {
        if (theirs[at] == rank0[at]) continue;
        return MakeError(ErrorKind::kConfig,
                         rank0[at].first + " differs: rank 0 has '" + rank0[at].second +
                             "', rank " + std::to_string(rank) + " has '" + theirs[at].second + "'",
                         rank);
      }
    }
    return std::vector<std::string>(all.size());
  };
  HA_TRY(bootstrap.Exchange(Encode(own), "", compare, deadline_ns));
  return {};
}

}  // namespace horoacc
