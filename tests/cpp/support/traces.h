#pragma once
// Timelines as their readers see them: the rules by which Perfetto nests slices (those that overlap
// without nesting are dropped there).
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/trace/timeline.h"
#include "support/check.h"
#include "support/json.h"
#include "transport/net/fd.h"

namespace horoacc::testing {

/// A folder that goes with its test.
class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "timeline-XXXXXX").string();
    CHECK(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::string File(const char* name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

inline std::string ReadAll(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// What is written to stderr while it lives.
class StderrCapture {
 public:
  explicit StderrCapture(std::string path) : path_(std::move(path)), kept_(::dup(STDERR_FILENO)) {
    const Fd file(::open(path_.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600));
    CHECK(::dup2(file.get(), STDERR_FILENO) >= 0);
  }
  std::string Stop() {
    ::dup2(kept_.get(), STDERR_FILENO);
    return ReadAll(path_);
  }

 private:
  std::string path_;
  Fd kept_;
};

std::shared_ptr<Timeline> MustOpen(const std::string& path, int rank = 0,
                                   bool mark_cycles = false) {
  auto opened = Timeline::Open(path, rank, Log(rank, LogLevel::kWarning, false), mark_cycles);
  if (!opened.ok()) check::Fail(__FILE__, __LINE__, opened.error().message);
  return std::move(opened).value();
}

/// Tells a timeline the way of one tensor. Times are ns after `origin`.
struct Way {
  Timeline& timeline;
  int64_t origin;
  uint64_t handle;
  std::string tensor;
  uint32_t process_set = 0;

  void Tell(Phase phase, int64_t after, std::string_view detail = {}, uint64_t bucket = 0,
            uint64_t value = 0) const {
    timeline.On({phase, origin + after, process_set, handle, bucket, value, tensor, detail});
  }
  void Whole(int64_t after, uint64_t bucket) const {
    Tell(Phase::kQueued, after, "allreduce");
    Tell(Phase::kNegotiated, after + 10'000, {}, bucket);
    Tell(Phase::kExecute, after + 11'000, "direct_slices", bucket, 4096);
    Tell(Phase::kExecuted, after + 31'000);
    Tell(Phase::kReleased, after + 40'000);
  }
};

struct Slice {
  std::string name;
  std::string parent;  ///< name of the slice around it, or empty
  int64_t from_ns;
  int64_t length_ns;
  Json args;
};

struct Trace {
  std::map<int, std::string> lanes;            ///< titles by tid
  std::map<int, std::vector<Slice>> slices;    ///< by tid, in order of time
  std::vector<std::pair<int, Json>> instants;  ///< tid, args
  std::map<std::string, Json> metadata;        ///< args of the events that are about no lane

  [[nodiscard]] int LaneOf(const std::string& title) const {
    for (const auto& [tid, name] : lanes) {
      if (name == title) return tid;
    }
    check::Fail(__FILE__, __LINE__, "no lane '" + title + "'");
  }
  [[nodiscard]] const std::vector<Slice>& Of(const std::string& title) const {
    return slices.at(LaneOf(title));
  }
};

/// us as a double to ns, as Perfetto's importer does it.
inline int64_t Nanoseconds(const Json& micros) {
  CHECK(micros.kind == Json::Kind::kNumber && micros.number >= 0);
  return static_cast<int64_t>(micros.number * 1000.0);
}

/// Sorts by begin, keeps file order between equals, and finds each slice's parent. Fails where one
/// slice ends inside another.
inline void Nest(std::vector<Slice>& slices) {
  std::ranges::stable_sort(slices, {}, &Slice::from_ns);
  std::vector<const Slice*> open;
  for (Slice& slice : slices) {
    const auto end = [](const Slice& one) { return one.from_ns + one.length_ns; };
    while (!open.empty() && end(*open.back()) <= slice.from_ns &&
           (open.back()->length_ns > 0 || slice.length_ns > 0)) {
      open.pop_back();
    }
    if (!open.empty()) {
      CHECK(end(slice) <= end(*open.back()));
      slice.parent = open.back()->name;
    }
    open.push_back(&slice);
  }
}

Trace Read(std::string_view text, int rank = 0) {
  const std::optional<Json> array = JsonParser::Parse(text);
  if (!array) check::Fail(__FILE__, __LINE__, "not JSON: " + std::string(text.substr(0, 2000)));
  CHECK(array->kind == Json::Kind::kArray);
  Trace trace;
  for (const Json& event : array->items) {
    const std::string& phase = event.At("ph").text;
    const std::string& name = event.At("name").text;
    const int tid = static_cast<int>(event.At("tid").number);
    CHECK_EQ(event.At("pid").number, rank);
    const Json args = event.Has("args") ? event.At("args") : Json{};
    if (phase == "M" && name == "thread_name") {
      CHECK(tid > 0);
      CHECK(trace.lanes.emplace(tid, args.At("name").text).second);
    } else if (phase == "M") {
      CHECK(trace.metadata.emplace(name, args).second);
    } else if (phase == "i") {
      CHECK_EQ(event.At("s").text, "t");
      (void)Nanoseconds(event.At("ts"));
      trace.instants.emplace_back(tid, args);
    } else {
      CHECK_EQ(phase, "X");
      CHECK(trace.lanes.contains(tid));
      trace.slices[tid].push_back(
          {name, "", Nanoseconds(event.At("ts")), Nanoseconds(event.At("dur")), args});
    }
  }
  for (auto& [tid, slices] : trace.slices) Nest(slices);
  CHECK_EQ(trace.metadata.at("process_name").At("name").text, "rank " + std::to_string(rank));
  return trace;
}

Trace ReadFile(const std::string& path, int rank = 0) { return Read(ReadAll(path), rank); }

inline size_t Count(const std::string& text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace horoacc::testing
