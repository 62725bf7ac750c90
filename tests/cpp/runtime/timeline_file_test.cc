// The timeline as a file: valid at every moment, whatever happens to the disk or to the rank.
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "support/forked_ranks.h"
#include "support/traces.h"

namespace horoacc::testing {
namespace {

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
      const std::string text = ReadAll(path);
      // A writer that lost its core in the middle of a write leaves a part for as long as it waits.
      if (JsonParser::Parse(text)) lanes = Read(text).lanes.size();
    }
    CHECK_EQ(lanes, handle);
  }
  CHECK(timeline->Close().ok());
  const Trace trace = ReadFile(path);
  CHECK_EQ(trace.lanes.size(), handle);
  for (const auto& [tid, slices] : trace.slices) CHECK_EQ(slices.size(), 5);
}

TEST(UnwritablePathIsAConfigError) {
  const Folder folder;
  const std::vector<std::pair<std::string, std::string>> paths = {
      {"/dev/full", "No space left on device (errno 28)"},
      {folder.File("no/such/folder"), "No such file or directory (errno 2)"},
      {folder.File("."), "Is a directory (errno 21)"},
  };
  for (const auto& [path, reason] : paths) {
    const auto opened = Timeline::Open(path, 0, Log(0, LogLevel::kWarning, false), false);
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
}  // namespace horoacc::testing
