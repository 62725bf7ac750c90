// The timeline as its readers see it: a strict JSON parser, and the rules by which Perfetto nests
// slices (those that overlap without nesting are dropped there).
#include "runtime/timeline.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "check.h"
#include "forked_ranks.h"

namespace horoacc {
namespace {

/// A JSON value. Only what a trace may hold: no null, and objects keep no duplicate keys.
struct Json {
  enum class Kind { kObject, kArray, kString, kNumber, kBool } kind = Kind::kBool;
  std::map<std::string, Json> fields;
  std::vector<Json> items;
  std::string text;
  double number = 0;

  [[nodiscard]] bool Has(const std::string& key) const { return fields.contains(key); }
  [[nodiscard]] const Json& At(const std::string& key) const {
    const auto found = fields.find(key);
    if (found == fields.end()) check::Fail(__FILE__, __LINE__, "no field '" + key + "'");
    return found->second;
  }
};

/// RFC 8259, and nothing more lenient than it.
class JsonParser {
 public:
  static std::optional<Json> Parse(std::string_view text) {
    JsonParser parser(text);
    Json value;
    if (!parser.Value(value)) return std::nullopt;
    parser.Space();
    if (!parser.rest_.empty()) return std::nullopt;
    return value;
  }

 private:
  explicit JsonParser(std::string_view text) : rest_(text) {}

  void Space() {
    const size_t first = std::min(rest_.find_first_not_of(" \t\r\n"), rest_.size());
    rest_.remove_prefix(first);
  }
  bool Take(std::string_view token) {
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  bool Value(Json& value) {
    Space();
    if (rest_.starts_with('{')) return Object(value);
    if (rest_.starts_with('[')) return Array(value);
    if (rest_.starts_with('"')) {
      value.kind = Json::Kind::kString;
      return String(value.text);
    }
    if (Take("true")) {
      value.number = 1;
      return true;
    }
    if (Take("false")) return true;
    return Number(value);
  }
  bool Object(Json& value) {
    value.kind = Json::Kind::kObject;
    Take("{");
    Space();
    if (Take("}")) return true;
    do {
      Space();
      std::string key;
      if (!String(key)) return false;
      Space();
      if (!Take(":") || value.fields.contains(key) || !Value(value.fields[key])) return false;
      Space();
    } while (Take(","));
    return Take("}");
  }
  bool Array(Json& value) {
    value.kind = Json::Kind::kArray;
    Take("[");
    Space();
    if (Take("]")) return true;
    do {
      if (!Value(value.items.emplace_back())) return false;
      Space();
    } while (Take(","));
    return Take("]");
  }
  bool Number(Json& value) {
    value.kind = Json::Kind::kNumber;
    size_t at = 0;
    const auto digits = [&] {
      const size_t first = at;
      while (at < rest_.size() && rest_[at] >= '0' && rest_[at] <= '9') ++at;
      return at - first;
    };
    if (rest_.starts_with('-')) ++at;
    const bool zero = at < rest_.size() && rest_[at] == '0';
    const size_t whole = digits();
    if (whole == 0 || (zero && whole > 1)) return false;
    if (at < rest_.size() && rest_[at] == '.') {
      ++at;
      if (digits() == 0) return false;
    }
    value.number = std::strtod(std::string(rest_.substr(0, at)).c_str(), nullptr);
    rest_.remove_prefix(at);
    return true;
  }
  bool String(std::string& text) {
    if (!Take("\"")) return false;
    while (!rest_.empty() && rest_.front() != '"') {
      const auto byte = static_cast<unsigned char>(rest_.front());
      if (byte < 0x20) return false;
      rest_.remove_prefix(1);
      if (byte != '\\') {
        text += static_cast<char>(byte);
      } else if (!Escape(text)) {
        return false;
      }
    }
    return Take("\"");
  }
  bool Escape(std::string& text) {
    constexpr std::string_view kLetters = "\"\\/bfnrt";
    constexpr std::string_view kMeant = "\"\\/\b\f\n\r\t";
    if (rest_.empty()) return false;
    if (const size_t at = kLetters.find(rest_.front()); at != std::string_view::npos) {
      text += kMeant[at];
      rest_.remove_prefix(1);
      return true;
    }
    if (!Take("u") || rest_.size() < 4) return false;
    const std::string hex(rest_.substr(0, 4));
    if (hex.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) return false;
    rest_.remove_prefix(4);
    const unsigned long code = std::strtoul(hex.c_str(), nullptr, 16);
    if (code < 0x80) {
      text += static_cast<char>(code);
    } else if (code < 0x800) {
      text += {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
    } else {
      text += {static_cast<char>(0xe0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3f)),
               static_cast<char>(0x80 | (code & 0x3f))};
    }
    return true;
  }

  std::string_view rest_;
};

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

std::string ReadAll(const std::string& path) {
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
  auto opened = Timeline::Open(path, rank, mark_cycles);
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
int64_t Nanoseconds(const Json& micros) {
  CHECK(micros.kind == Json::Kind::kNumber && micros.number >= 0);
  return static_cast<int64_t>(micros.number * 1000.0);
}

/// Sorts by begin, keeps file order between equals, and finds each slice's parent. Fails where one
/// slice ends inside another.
void Nest(std::vector<Slice>& slices) {
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

/// The file between two writes. One that is read while a write runs may show a part of it.
std::string ReadSettled(const std::string& path) {
  std::string before = ReadAll(path);
  for (std::string now; (now = ReadAll(path)) != before; before = std::move(now)) {
  }
  return before;
}

size_t Count(const std::string& text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(IsValidAfterEveryFlush) {
  const Folder folder;
  const std::string path = folder.File("trace.json");
  const auto timeline = MustOpen(path);
  CHECK_EQ(Read(ReadAll(path)).lanes.size(), 0);
  const int64_t origin = NowNs();
  // Names of many lengths put the closing bracket everywhere in a page, and events on both sides
  // of its end; one is longer than a page.
  uint64_t handle = 0;
  for (int flush = 0; flush < 5; ++flush) {
    size_t lanes = 0;
    for (size_t length = 0; length < 200; ++length) {
      const std::string name = std::to_string(handle) + std::string(length, 'x');
      Way{*timeline, origin, ++handle, name}.Whole(0, handle);
    }
    Way{*timeline, origin, ++handle, std::to_string(flush) + std::string(9000, 'y')}.Whole(0, 1);
    const int64_t deadline = NowNs() + 30 * kSecond;
    while (lanes < handle && NowNs() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      lanes = Read(ReadSettled(path)).lanes.size();
    }
    CHECK_EQ(lanes, handle);
  }
  CHECK(timeline->Close().ok());
  const Trace trace = ReadFile(path);
  CHECK_EQ(trace.lanes.size(), handle);
  for (const auto& [tid, slices] : trace.slices) CHECK_EQ(slices.size(), 5);
}

TEST(PhasesNestInTheTensorsLife) {
  const Folder folder;
  const std::string path = folder.File("trace.json");
  const int64_t origin = NowNs();
  const auto timeline = MustOpen(path, 3);
  const Way way{*timeline, NowNs(), 7, "grad"};
  way.Whole(0, 5);
  way.timeline.On({Phase::kReleased, NowNs(), 0, 99, 0, 0, "of nobody", {}});
  CHECK(timeline->Close().ok());
  const Trace trace = ReadFile(path, 3);
  const Json& start = trace.metadata.at("process_name").At("start_time_since_epoch_in_micros");
  CHECK(start.number > 1.7e15);
  CHECK_EQ(trace.lanes.size(), 1);
  const std::vector<Slice>& slices = trace.Of("grad");
  CHECK_EQ(slices.size(), 5);
  const std::vector<std::pair<const char*, int64_t>> expected = {{"allreduce", 40'000},
                                                                 {"NEGOTIATE", 10'000},
                                                                 {"WAIT", 1'000},
                                                                 {"EXECUTE", 20'000},
                                                                 {"RESULT", 9'000}};
  for (size_t s = 0; s < expected.size(); ++s) {
    CHECK_EQ(slices[s].name, expected[s].first);
    CHECK_EQ(slices[s].parent, s == 0 ? "" : "allreduce");
    // A time is cut to 1/8 us, so a length may be off by that much.
    CHECK(std::abs(slices[s].length_ns - expected[s].second) <= 125);
  }
  CHECK(slices[0].from_ns <= NowNs() - origin);
  CHECK_EQ(slices[0].args.At("tensor").text, "grad");
  CHECK_EQ(slices[0].args.At("process_set").number, 0);
  CHECK(!slices[0].args.Has("error") && !slices[0].args.Has("unfinished"));
  CHECK_EQ(slices[3].args.At("path").text, "direct_slices");
  CHECK_EQ(slices[3].args.At("bytes").number, 4096);
  CHECK_EQ(slices[3].args.At("bucket").number, 5);
}

TEST(NestsAtEveryNanosecond) {
  const Folder folder;
  const std::string path = folder.File("trace.json");
  const auto timeline = MustOpen(path);
  // Odd times, far from the start, some phases without length: Read() fails on any overlap.
  const int64_t origin = NowNs();
  int64_t now = 0;
  for (uint64_t round = 0; round < 2000; ++round) {
    const Way way{*timeline, origin, round + 1, "t"};
    const auto step = [&] { return now += static_cast<int64_t>(round * 37 % 401); };
    way.Tell(Phase::kQueued, now, "broadcast");
    way.Tell(Phase::kNegotiated, step(), {}, round + 1);
    way.Tell(Phase::kExecute, step(), "none", round + 1, 0);
    way.Tell(Phase::kExecuted, step());
    way.Tell(Phase::kReleased, step());
    now += static_cast<int64_t>(round * round * 11);
  }
  CHECK(timeline->Close().ok());
  const Trace trace = ReadFile(path);
  const auto& slices = trace.Of("t");
  CHECK_EQ(std::ranges::count(slices, std::string("broadcast"), &Slice::name), 2000);
  CHECK_EQ(std::ranges::count(slices, std::string("EXECUTE"), &Slice::name), 2000);
  for (const Slice& slice : slices) {
    CHECK_EQ(slice.parent, slice.name == "broadcast" ? "" : "broadcast");
  }
}

TEST(NamesAreEscaped) {
  const Folder folder;
  const std::string path = folder.File("trace.json");
  const auto timeline = MustOpen(path);
  const std::string replaced = "\xef\xbf\xbd";
  const std::vector<std::pair<std::string, std::string>> names = {
      {"layer.\"0\"\\w", "layer.\"0\"\\w"},
      {"a\nb\tc\x01"
       "d\x1f\x7f",
       "a\nb\tc\x01"
       "d\x1f\x7f"},
      {std::string("nul\0l", 5), std::string("nul\0l", 5)},
      {"gew\xc3\xb6hnlich \xe6\xa2\xaf\xe5\xba\xa6 \xf0\x9f\x8e\x89",
       "gew\xc3\xb6hnlich \xe6\xa2\xaf\xe5\xba\xa6 \xf0\x9f\x8e\x89"},
      {"latin \xf6", "latin " + replaced},
      {"overlong \xc0\xaf", "overlong " + replaced + replaced},
      {"overlong too \xe0\x80\xaf", "overlong too " + replaced + replaced + replaced},
      {"surrogate \xed\xa0\x80", "surrogate " + replaced + replaced + replaced},
      {"beyond \xf4\x90\x80\x80", "beyond " + replaced + replaced + replaced + replaced},
      {"cut \xe6\xa2", "cut " + replaced + replaced},
      {"", ""},
  };
  for (size_t n = 0; n < names.size(); ++n) {
    const Way way{*timeline, NowNs(), n + 1, names[n].first};
    way.Tell(Phase::kQueued, 0, "allgather");
    way.Tell(Phase::kError, 5'000, "shape of '" + names[n].first + "' differs");
    way.Tell(Phase::kReleased, 6'000);
  }
  CHECK(timeline->Close().ok());
  const Trace trace = ReadFile(path);
  CHECK_EQ(trace.lanes.size(), names.size());
  for (const auto& [given, shown] : names) {
    const std::vector<Slice>& slices = trace.Of(shown);
    CHECK_EQ(slices.size(), 3);
    CHECK_EQ(slices[0].args.At("tensor").text, shown);
    CHECK_EQ(slices[0].args.At("error").text, "shape of '" + shown + "' differs");
    CHECK_EQ(slices[1].name, "NEGOTIATE");
    CHECK_EQ(slices[2].name, "RESULT");
  }
}

TEST(UnwritablePathIsAConfigError) {
  const Folder folder;
  const std::vector<std::pair<std::string, std::string>> paths = {
      {"/dev/full", "No space left on device (errno 28)"},
      {folder.File("no/such/folder"), "No such file or directory (errno 2)"},
      {folder.File("."), "Is a directory (errno 21)"},
  };
  for (const auto& [path, reason] : paths) {
    const auto opened = Timeline::Open(path, 0, false);
    CHECK(!opened.ok());
    CHECK(opened.error().kind == ErrorKind::kConfig);
    CHECK(opened.error().message.find("'" + path + "'") != std::string::npos);
    CHECK(opened.error().message.find(reason) != std::string::npos);
  }
}

TEST(AFailedWriteEndsTheTimelineWithOneWarning) {
  const Folder folder;
  const std::string path = folder.File("trace.json");
  const auto timeline = MustOpen(path);
  // A limit of the file's size stands for a disk that fills up: the write past it comes back short,
  // then fails. SIGXFSZ has its default action here, which would end the process.
  rlimit before{};
  CHECK_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{10'000, before.rlim_max};
  CHECK_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  StderrCapture capture(folder.File("stderr"));
  const int64_t deadline = NowNs() + 30 * kSecond;
  uint64_t handle = 0;
  while (ReadAll(folder.File("stderr")).empty() && NowNs() < deadline) {
    for (int n = 0; n < 100; ++n) Way{*timeline, NowNs(), ++handle, "t"}.Whole(0, handle);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (int n = 0; n < 100; ++n) Way{*timeline, NowNs(), ++handle, "t"}.Whole(0, handle);
  CHECK(timeline->Close().ok());
  CHECK_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  const std::string said = capture.Stop();
  CHECK_EQ(Count(said, "\n"), 1);
  CHECK(said.find("warning: the timeline '" + path + "' ends here, the job goes on: ") !=
        std::string::npos);
  CHECK(said.find("File too large (errno 27)") != std::string::npos);
  const std::string text = ReadAll(path);
  CHECK(text.size() <= 10'000);
  CHECK(Read(text).Of("t").size() > 5);
}

TEST(FourThreadsWriteAtOnce) {
  const Folder folder;
  const std::string path = folder.File("trace.json");
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kRounds = 2000;
  const auto timeline = MustOpen(path);
  {
    std::vector<std::jthread> threads;
    for (uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&timeline, t] {
        for (uint64_t round = 0; round < kRounds; ++round) {
          const Way named{*timeline, 0, 1 + 2 * (round * kThreads + t),
                          "grad." + std::to_string(t)};
          const Way unnamed{*timeline, 0, named.handle + 1,
                            "alltoall.noname." + std::to_string(named.handle)};
          for (const Way* way : {&named, &unnamed}) {
            way->Tell(Phase::kQueued, NowNs(), "alltoall");
            way->Tell(Phase::kNegotiated, NowNs(), {}, round + 1);
            way->Tell(Phase::kExecute, NowNs(), "windows", round + 1, 8);
            way->Tell(Phase::kExecuted, NowNs());
            way->Tell(Phase::kReleased, NowNs());
          }
        }
      });
    }
  }
  CHECK(timeline->Close().ok());
  const Trace trace = ReadFile(path);
  size_t named = 0;
  std::set<std::string> unnamed;
  for (const auto& [tid, slices] : trace.slices) {
    const bool shared = trace.lanes.at(tid).starts_with("alltoall.noname.*");
    for (const Slice& slice : slices) {
      if (slice.name != "alltoall") {
        CHECK_EQ(slice.parent, "alltoall");
      } else if (shared) {
        CHECK(unnamed.insert(slice.args.At("tensor").text).second);
      } else {
        ++named;
      }
    }
  }
  CHECK_EQ(named, kThreads * kRounds);
  CHECK_EQ(unnamed.size(), kThreads * kRounds);
  // Lanes of unnamed tensors are as many as were in flight at once: only a thread that was held
  // up between taking the time and telling it adds to the four.
  CHECK(trace.lanes.size() < kThreads + 100);
}

TEST(ClosesTwice) {
  const Folder folder;
  const std::string path = folder.File("trace.json");
  const auto timeline = MustOpen(path);
  const Way way{*timeline, NowNs(), 1, "t"};
  way.Whole(0, 1);
  {
    const std::jthread other([&timeline] { CHECK(timeline->Close().ok()); });
    CHECK(timeline->Close().ok());
  }
  const std::string text = ReadAll(path);
  way.Whole(1'000'000, 2);
  CHECK(timeline->Close().ok());
  CHECK_EQ(ReadAll(path), text);
  CHECK_EQ(Read(text).Of("t").size(), 5);
  // The same path again is a new trace.
  CHECK(MustOpen(path)->Close().ok());
  CHECK_EQ(ReadFile(path).lanes.size(), 0);
}

TEST(ANameUsedAgainEndsTheSliceBefore) {
  const Folder folder;
  const std::string path = folder.File("trace.json");
  const auto timeline = MustOpen(path);
  const int64_t origin = NowNs();
  // Failed and never released: it ends with its error.
  const Way failed{*timeline, origin, 1, "a"};
  failed.Tell(Phase::kQueued, 0, "broadcast");
  failed.Tell(Phase::kError, 5'000, "no such root");
  Way{*timeline, origin, 2, "a"}.Whole(20'000, 1);
  // Let go while it still ran: it ends where the next begins, and what it tells later is ignored.
  const Way abandoned{*timeline, origin, 3, "b"};
  abandoned.Tell(Phase::kQueued, 0, "broadcast");
  abandoned.Tell(Phase::kReleased, 1'000);
  Way{*timeline, origin, 4, "b"}.Whole(8'000, 2);
  abandoned.Tell(Phase::kExecuted, 9'000);
  // Released before its end, but nobody used the name meanwhile.
  const Way early{*timeline, origin, 5, "c"};
  early.Tell(Phase::kQueued, 0, "broadcast");
  early.Tell(Phase::kReleased, 1'000);
  early.Tell(Phase::kNegotiated, 2'000, {}, 3);
  early.Tell(Phase::kExecute, 3'000, "windows", 3, 64);
  early.Tell(Phase::kExecuted, 7'000);
  CHECK(timeline->Close().ok());

  const Trace trace = ReadFile(path);
  const auto close_to = [](int64_t actual, int64_t expected) {
    return std::abs(actual - expected) <= 125;
  };
  const auto& a = trace.Of("a");
  CHECK_EQ(a.size(), 7);
  CHECK(close_to(a[0].length_ns, 5'000));
  CHECK_EQ(a[0].args.At("error").text, "no such root");
  CHECK(!a[0].args.Has("unfinished"));
  const auto& b = trace.Of("b");
  CHECK_EQ(b.size(), 7);
  CHECK(close_to(b[0].length_ns, 8'000));
  CHECK(b[0].args.Has("unfinished"));
  CHECK_EQ(b[2].name, "allreduce");
  CHECK(close_to(b[2].length_ns, 40'000));
  const auto& c = trace.Of("c");
  CHECK_EQ(c.size(), 4);
  CHECK(close_to(c[0].length_ns, 7'000));
  CHECK(close_to(c[3].length_ns, 4'000));
  CHECK_EQ(c[3].name, "EXECUTE");
}

TEST(WhatIsInFlightAtTheEndIsUnfinished) {
  const Folder folder;
  const std::string path = folder.File("trace.json");
  const auto timeline = MustOpen(path);
  const int64_t origin = NowNs();
  const Way stuck{*timeline, origin, 1, "stuck"};
  stuck.Tell(Phase::kQueued, 0, "allreduce");
  const Way running{*timeline, origin, 2, "running"};
  running.Tell(Phase::kQueued, 0, "allreduce");
  running.Tell(Phase::kNegotiated, 10, {}, 1);
  running.Tell(Phase::kExecute, 10'000, "two_phase", 1, 12);
  const Way held{*timeline, origin, 3, "held"};
  held.Tell(Phase::kQueued, 0, "allreduce");
  held.Tell(Phase::kExecuted, 20'000);
  CHECK(timeline->Close().ok());
  const Trace trace = ReadFile(path);
  const auto& waiting = trace.Of("stuck");
  CHECK_EQ(waiting.size(), 2);
  CHECK(waiting[0].args.Has("unfinished"));
  CHECK_EQ(waiting[1].name, "NEGOTIATE");
  CHECK_EQ(waiting[1].length_ns, waiting[0].length_ns);
  const auto& begun = trace.Of("running");
  CHECK(begun[0].args.Has("unfinished"));
  CHECK_EQ(begun.back().name, "EXECUTE");
  CHECK_EQ(begun.back().args.At("path").text, "two_phase");
  CHECK(!trace.Of("held")[0].args.Has("unfinished"));
}

TEST(DecisionsAreMarkedOnRequest) {
  const Folder folder;
  for (const bool marked : {false, true}) {
    const std::string path = folder.File("trace.json");
    const auto timeline = MustOpen(path, 0, marked);
    const int64_t origin = NowNs();
    for (uint64_t bucket = 1; bucket <= 3; ++bucket) {
      for (const char* tensor : {"a", "b"}) {
        Way{*timeline, origin, 2 * bucket + (*tensor == 'a'), tensor}.Whole(
            static_cast<int64_t>(bucket) * 100'000, bucket);
      }
    }
    Way{*timeline, origin, 100, "a", 4}.Whole(0, 1);
    CHECK(timeline->Close().ok());
    const Trace trace = ReadFile(path);
    std::map<int, std::vector<int>> buckets;
    for (const auto& [tid, args] : trace.instants) {
      CHECK_EQ(trace.lanes.at(tid), "decisions");
      buckets[static_cast<int>(args.At("process_set").number)].push_back(
          static_cast<int>(args.At("bucket").number));
    }
    if (marked) {
      CHECK(buckets == (std::map<int, std::vector<int>>{{0, {1, 2, 3}}, {4, {1}}}));
    } else {
      CHECK(buckets.empty());
    }
    CHECK_EQ(trace.Of("a [process set 4]").size(), 5);
  }
}

TEST(LanesStay) {
  const Folder folder;
  const std::string path = folder.File("trace.json");
  const auto timeline = MustOpen(path);
  const int64_t origin = NowNs();
  uint64_t handle = 0;
  for (int step = 0; step < 4; ++step) {
    for (const char* tensor : {"w", "b"}) {
      for (const uint32_t set : {0U, 2U}) {
        Way{*timeline, origin, ++handle, tensor, set}.Whole(step * 50'000, handle);
      }
    }
    // Two unnamed ones in flight together, with ever new numbers.
    const std::string number = std::to_string(2 * step);
    const Way one{*timeline, origin, ++handle, "allreduce.noname." + number};
    one.Tell(Phase::kQueued, step * 50'000, "allreduce");
    Way{*timeline, origin, ++handle, "allreduce.noname.1" + number}.Whole(step * 50'000, handle);
    one.Tell(Phase::kExecuted, step * 50'000 + 45'000);
    one.Tell(Phase::kReleased, step * 50'000 + 45'000);
  }
  Way{*timeline, origin, ++handle, "my.noname.layer"}.Whole(0, handle);
  CHECK(timeline->Close().ok());
  const Trace trace = ReadFile(path);
  std::set<std::string> titles;
  for (const auto& [tid, title] : trace.lanes) titles.insert(title);
  CHECK(titles ==
        (std::set<std::string>{"w", "b", "w [process set 2]", "b [process set 2]",
                               "allreduce.noname.*", "allreduce.noname.* (2)", "my.noname.layer"}));
  for (const char* title : {"w", "b", "w [process set 2]", "b [process set 2]"}) {
    CHECK_EQ(trace.Of(title).size(), 4 * 5);
  }
  CHECK_EQ(trace.Of("allreduce.noname.*").size(), 4 * 2);
  CHECK_EQ(trace.Of("allreduce.noname.* (2)").size(), 4 * 5);
}

TEST(DroppedEventsAreTold) {
  const Folder folder;
  const std::string path = folder.File("trace.json");
  const auto timeline = MustOpen(path);
  // More text than the queue ever holds.
  const std::string huge(size_t{65} << 20, 'x');
  StderrCapture capture(folder.File("stderr"));
  const Way lost{*timeline, NowNs(), 1, huge};
  lost.Whole(0, 1);
  Way{*timeline, NowNs(), 2, huge}.Tell(Phase::kQueued, 0, "allreduce");
  Way{*timeline, NowNs(), 3, "small"}.Whole(0, 2);
  CHECK(timeline->Close().ok());
  const std::string said = capture.Stop();
  CHECK_EQ(Count(said, "\n"), 1);
  CHECK(said.find("the timeline '" + path + "' lacks 2 events") != std::string::npos);
  const Trace trace = ReadFile(path);
  CHECK_EQ(trace.metadata.at("dropped_events").At("count").number, 2);
  CHECK_EQ(trace.lanes.size(), 1);
  CHECK_EQ(trace.Of("small").size(), 5);
}

TEST(AKilledRankLeavesWholeEvents) {
  const Folder folder;
  for (int round = 0; round < 5; ++round) {
    const std::string path = folder.File("trace.json");
    std::filesystem::remove(path);
    ForkedRank rank([&path] {
      const auto timeline = MustOpen(path);
      for (uint64_t handle = 1;; ++handle) {
        const std::string name = "grad." + std::to_string(handle % 50);
        Way{*timeline, NowNs(), handle, name}.Whole(0, handle);
        if (handle % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
      return 0;
    });
    const int64_t deadline = NowNs() + 30 * kSecond;
    std::error_code missing;
    while (NowNs() < deadline) {
      const auto size = std::filesystem::file_size(path, missing);
      if (!missing && size > (200'000U << round)) break;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    rank.Kill();
    CHECK_EQ(rank.Await(NowNs() + 30 * kSecond), 1000 + SIGKILL);
    std::string text = ReadAll(path);
    CHECK(text.size() > 200'000);
    // Where the kill fell between two pages of one write, only the bracket is missing.
    if (const size_t last = text.find_last_not_of(", \n"); text[last] != ']') {
      CHECK_EQ(text[last], '}');
      text.resize(last + 1);
      text += ']';
    }
    CHECK(Read(text).slices.size() == 50);
  }
}

}  // namespace
}  // namespace horoacc
