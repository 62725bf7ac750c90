// Lines on a stderr that nobody reads: no caller waits, and none is lost that there is room for.
#include "base/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "support/check.h"

namespace horoacc {
namespace {

struct Pipe {
  Pipe() {
    int ends[2];
    CHECK_EQ(::pipe(ends), 0);
    reads = ends[0];
    writes = ends[1];
  }
  ~Pipe() { ::close(reads); }

  /// Until `count` lines have come.
  std::string Read(size_t count) const {
    std::string text;
    for (size_t lines = 0; lines < count;) {
      char some[4096];
      const ssize_t got = ::read(reads, some, sizeof some);
      CHECK(got > 0);
      text.append(some, static_cast<size_t>(got));
      lines = static_cast<size_t>(std::ranges::count(text, '\n'));
    }
    return text;
  }

  int reads = -1;
  int writes = -1;  ///< never closed: a thread of the log may still have it
};

std::string Line(int number) {
  return "horoacc rank 3 error: " + std::to_string(number) + std::string(200, '.') + "\n";
}

TEST(a_line_is_there_when_the_call_returns) {
  const Pipe pipe;
  const Log log(3, LogLevel::kWarning, true, pipe.writes);
  log.Write(LogLevel::kInfo, "too low a level");
  log.Write(LogLevel::kWarning, "first");
  CHECK_EQ(::fcntl(pipe.writes, F_SETFL, O_NONBLOCK), 0);
  CHECK_EQ(pipe.Read(1), "horoacc rank 3 warning: first\n");
}

TEST(a_long_line_is_whole) {
  const Pipe pipe;
  const Log log(3, LogLevel::kWarning, true, pipe.writes);
  const std::string text(1 << 18, 'x');  // more than a pipe takes
  log.Write(LogLevel::kError, text);
  log.Write(LogLevel::kError, "behind it");
  log.Flush(std::chrono::milliseconds(1));  // nobody reads
  CHECK_EQ(pipe.Read(2), "horoacc rank 3 error: " + text + "\nhoroacc rank 3 error: behind it\n");
  log.Flush(std::chrono::seconds(60));
}

// The pipe takes about 300 of these lines; 1000 wait for the reader.
TEST(no_caller_waits_for_the_reader) {
  constexpr int kLines = 2000;
  const Pipe pipe;
  {
    const Log log(3, LogLevel::kWarning, true, pipe.writes);
    for (int k = 0; k < kLines; ++k)
      log.Write(LogLevel::kError, std::to_string(k) + std::string(200, '.'));
  }
  std::string text = pipe.Read(1200);
  while (text.find("lines were lost") == std::string::npos) text += pipe.Read(1);
  int next = 0;
  size_t at = 0;
  for (; text.compare(at, Line(next).size(), Line(next)) == 0; ++next) at += Line(next).size();
  CHECK(next > 1000);
  CHECK_EQ(text.substr(at),
           "horoacc: " + std::to_string(kLines - next) + " more lines were lost\n");
}

}  // namespace
}  // namespace horoacc
