// Data links over TCP between hosts; started once a rank, by tests/lab and for figures:
//
//   data_links_check MODE rank=R size=N rendezvous=HOST:PORT [key=value ...]
//
// "battery": what all data links do. "goodput": rank 0 sends `bytes` to rank 1 and prints how many
// bits a second arrived. "silence": rank 0 sends a small message when it is told to on its input,
// and prints what it learns of an answer that never comes. Keys: streams, buffer (bytes),
// interfaces, bytes, epoch.
#include <cstdio>
#include <map>
#include <string>

#define HOROACC_CHECK_WITHOUT_MAIN
#include "support/data_battery.h"
#include "transport/bootstrap/tcp_rendezvous.h"

using namespace horoacc;
using namespace horoacc::testing;

namespace {

void Goodput(TcpDataLinks& links, int rank, uint64_t bytes) {
  constexpr uint64_t kMessage = 1 << 20;
  constexpr uint32_t kSlots = 16;
  const uint64_t messages = bytes / kMessage;
  const LinkSpec spec{{0, 1}, 1 - rank, 0, kSlots, kMessage};
  if (rank == 0) {
    const auto contents = Pattern(kMessage, 1);
    const auto link = MustSend(links, spec);
    // The connections are there, and the path is warm, before the clock runs.
    CHECK(PostAll(*link, contents).ok());
    CHECK(!Drive(links, [&] { return link->taken() == 1; }));
    const int64_t start = NowNs();
    CHECK(!Drive(links, [&] {
      while (link->posted() < messages && link->HasRoom()) CHECK(PostAll(*link, contents).ok());
      return link->taken() == messages;
    }));
    const double seconds = static_cast<double>(NowNs() - start) / 1e9;
    const TcpTraffic traffic = links.traffic(1);
    std::printf("%.0f bits/s over %d streams, %lu bytes in %lu calls from %s\n",
                static_cast<double>((messages - 1) * kMessage) * 8 / seconds, links.streams(1),
                static_cast<unsigned long>(traffic.bytes_sent),
                static_cast<unsigned long>(traffic.send_calls), links.address().ToString().c_str());
  } else {
    const auto link = MustReceive(links, spec);
    std::vector<std::byte> place(kMessage * kSlots);
    uint64_t announced = 0;
    uint64_t released = 0;
    CHECK(!Drive(links, [&] {
      for (; announced < messages && announced < released + kSlots; ++announced) {
        const auto where = std::span(place).subspan(announced % kSlots * kMessage, kMessage);
        CHECK(link->Expect(kMessage, {&where, 1}).ok());
      }
      for (; released < messages && Look(*link) != nullptr; ++released) link->Release();
      return released == messages && !links.HasUnsent();
    }));
  }
}

/// Rank 0 is through once its links have failed; rank 1 waits to be killed.
void Silence(TcpDataLinks& links, int rank) {
  const LinkSpec spec{{0, 1}, 1 - rank, 0, 2, 1000};
  const auto contents = Pattern(1000, 1);
  if (rank == 1) {
    const auto link = MustReceive(links, spec);
    for (int message = 0; message < 2; ++message) CHECK(link->Expect(1000, {}).ok());
    CHECK(!Drive(links, [&] { return Look(*link) != nullptr; }));
    link->Release();
    (void)Drive(links, [] { return false; });
    return;
  }
  const auto link = MustSend(links, spec);
  CHECK(PostAll(*link, contents).ok());
  CHECK(!Drive(links, [&] { return link->taken() == 1; }));
  std::printf("warm\n");
  std::fflush(stdout);
  CHECK(std::getchar() != EOF);
  CHECK(PostAll(*link, contents).ok());
  const auto error = Drive(links, [&] { return link->taken() == 2; });
  CHECK(error.has_value());
  std::printf("%s\n", error->message.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc > 1);
  const std::string mode = argv[1];
  std::map<std::string, std::string> given;
  for (int index = 2; index < argc; ++index) {
    const std::string word = argv[index];
    given[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
  }
  const auto number = [&](const char* key, int64_t otherwise) {
    return given.contains(key) ? std::stoll(given[key]) : otherwise;
  };
  TcpOptions meeting;
  meeting.rank = static_cast<int>(number("rank", 0));
  meeting.size = static_cast<int>(number("size", 2));
  meeting.address = given["rendezvous"];
  meeting.secret = "the job's secret";
  meeting.deadline_ns = NowNs() + 30 * kSecond;
  auto bootstrap = ConnectTcp(meeting);
  if (!bootstrap.ok()) check::Fail(__FILE__, __LINE__, bootstrap.error().message);
  TcpDataOptions options = DataOptions(static_cast<int>(number("streams", 0)));
  options.host_timeout_ns = number("host_timeout", 12) * kSecond;
  options.socket_buffer = static_cast<uint64_t>(number("buffer", 0));
  auto links = ListenOnAll(*bootstrap.value(), options, "", given["interfaces"]);
  if (!links.ok()) check::Fail(__FILE__, __LINE__, links.error().message);
  const auto meet = [&] { CHECK(bootstrap.value()->AllGather("", NowNs() + 60 * kSecond).ok()); };
  if (mode == "battery") {
    RunBattery(*links.value(), meeting.rank, meeting.size, meet);
    std::printf("good over %s\n", links.value()->address().ToString().c_str());
  } else if (mode == "silence") {
    Silence(*links.value(), meeting.rank);
    return 0;
  } else {
    CHECK_EQ(mode, std::string("goodput"));
    Goodput(*links.value(), meeting.rank, static_cast<uint64_t>(number("bytes", 64 << 20)));
  }
  meet();
  return 0;
}
