// The record of a rank's flight: what it did last, and what it waits for.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/clock.h"
#include "runtime/engine/engine.h"

namespace horoacc {
namespace {

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') quoted += '\\';
    if (static_cast<unsigned char>(letter) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", letter);
      quoted += code;
    } else {
      quoted += letter;
    }
  }
  return quoted + "\"";
}

std::string ListOf(const std::vector<int>& ranks) {
  std::string list;
  for (const int rank : ranks) list += (list.empty() ? "" : ",") + std::to_string(rank);
  return "[" + list + "]";
}

const char* NameOfPhase(Phase phase) {
  switch (phase) {
    case Phase::kQueued:
      return "queued";
    case Phase::kNegotiated:
      return "agreed";
    case Phase::kExecute:
      return "begun";
    case Phase::kExecuted:
      return "done";
    case Phase::kReleased:
      return "released";
    case Phase::kError:
      return "failed";
  }
  return "";
}

double SecondsSince(int64_t then_ns, int64_t now_ns) {
  return static_cast<double>(now_ns - then_ns) / 1e9;
}

}  // namespace

std::string Engine::CallsInFlight(int64_t now_ns, bool ask_others) {
  std::string calls;
  for (const auto& set : Sets()) {
    std::lock_guard lock(set->queue.mutex);
    std::vector<std::shared_ptr<Entry>> entries;
    for (const uint32_t id : set->queue.in_flight.ids())
      entries.push_back(set->queue.in_flight.Find(id));
    for (const auto& join : set->queue.joins) entries.push_back(join);
    const size_t published = entries.size();
    entries.insert(entries.end(), set->queue.arriving.begin(), set->queue.arriving.end());
    for (size_t k = 0; k < entries.size(); ++k) {
      const auto& entry = entries[k];
      const bool agreed = entry->bucket.load(std::memory_order_relaxed) > 0;
      std::optional<Attendance> attendance;
      if (!agreed && ask_others && k < published) attendance = AttendanceOf(*set, *entry);
      std::ostringstream call;
      call << "{\"tensor\":" << Quoted(entry->display_name) << ",\"set\":" << set->id
           << ",\"ranks\":" << ListOf(set->ranks)
           << ",\"age\":" << SecondsSince(entry->submitted_ns, now_ns)
           << ",\"collective\":" << entry->bucket.load(std::memory_order_relaxed);
      if (attendance) {
        call << ",\"ready\":" << ListOf(attendance->ready)
             << ",\"missing\":" << ListOf(attendance->missing);
      }
      calls += (calls.empty() ? "" : ",\n") + call.str() + "}";
    }
  }
  return "[" + calls + "]";
}

std::string Engine::FlightText(const std::string& reason, bool ask_others) {
  const int64_t now = NowNs();
  timespec wall{};
  clock_gettime(CLOCK_REALTIME, &wall);
  std::ostringstream text;
  text << "{\"format\":1,\"rank\":" << placement_.rank << ",\"size\":" << placement_.size
       << ",\"host\":" << Quoted(hosts_.empty() ? "" : hosts_[placement_.rank])
       << ",\"pid\":" << ::getpid() << ",\"time\":" << wall.tv_sec
       << ",\"reason\":" << Quoted(reason)
       << ",\"agreed\":" << counters_.decisions.load(std::memory_order_relaxed)
       << ",\n\"calls\":" << CallsInFlight(now, ask_others)
       << ",\n\"stack\":" << Quoted(stacks_.Take()) << ",\n\"events\":[";
  const char* comma = "\n";
  for (const FlightRing::Record& record : events_.ring().Read()) {
    text << std::exchange(comma, ",\n") << "{\"age\":" << SecondsSince(record.time_ns, now)
         << ",\"what\":\"" << NameOfPhase(record.phase) << "\",\"set\":" << record.process_set
         << ",\"collective\":" << record.bucket << ",\"tensor\":" << Quoted(record.tensor)
         << ",\"detail\":" << Quoted(record.detail) << "}";
  }
  text << "]}\n";
  return text.str();
}

// One file a rank, the latest, so that they never take more than they may. Written by another
// thread: the disk may be slow, and the others wait for this rank.
void Engine::RecordFlight(const std::string& reason, bool ask_others) {
  if (settings_.flight_dir.empty()) return;
  completion_.Post([this, text = FlightText(reason, ask_others)] {
    const std::filesystem::path folder(settings_.flight_dir);
    std::error_code failed;
    std::filesystem::create_directories(folder, failed);
    const std::string name = "rank." + std::to_string(placement_.rank) + ".json";
    const std::filesystem::path unfinished = folder / ("." + name);
    {
      std::ofstream file(unfinished);
      file << text;
      file.close();
      if (!file) failed = std::make_error_code(std::errc::io_error);
    }
    if (!failed) std::filesystem::rename(unfinished, folder / name, failed);
    if (failed) {
      log_.Write(LogLevel::kWarning, "the record of the flight cannot be written to " +
                                         settings_.flight_dir + ": " + failed.message());
    }
  });
}

}  // namespace horoacc
