// A transport from a shared library (sample_transport.cc), and libraries that are none.
#include <barrier>

#include "support/data_battery.h"
#include "transport/data/tagged/tagged_links.h"

using namespace horoacc;
using namespace horoacc::testing;

namespace {

std::vector<Result<std::unique_ptr<DataLinks>>> LoadAll(int size,
                                                        const std::vector<std::string>& paths) {
  const auto hub = std::move(InprocHub::Create(size, 4096, 4096)).value();
  std::vector<Result<std::unique_ptr<DataLinks>>> links;
  for (int rank = 0; rank < size; ++rank) links.emplace_back(std::unique_ptr<DataLinks>());
  InThreads(size, [&](int rank) {
    const std::string& path = paths[static_cast<size_t>(rank) % paths.size()];
    links[rank] = LoadDataLinks(*hub->MakeBootstrap(rank), path, 3, NowNs() + 60 * kSecond);
  });
  return links;
}

}  // namespace

TEST(ATransportFromALibraryDoesWhatAllDataLinksDo) {
  const auto links = LoadAll(3, {SAMPLE_TRANSPORT});
  std::barrier all(3);
  InThreads(3, [&](int rank) {
    if (!links[rank].ok()) check::Fail(__FILE__, __LINE__, links[rank].error().message);
    DataLinks& own = *links[rank].value();
    CHECK_EQ(std::string(own.kind()), std::string("sample"));
    CHECK(own.WaitFd() >= 0 && !own.MustPoll());
    RunBattery(own, rank, 3, [&] { all.arrive_and_wait(); });
  });
}

TEST(ARankThatShutsDownIsMissedByNoStandingLink) {
  auto links = LoadAll(2, {SAMPLE_TRANSPORT});
  CheckLeaving(*links[0].value(), std::move(links[1]).value());
}

TEST(AClosedEndGivesItsPlacesBack) {
  const auto links = LoadAll(2, {SAMPLE_TRANSPORT});
  DataLinks& lower = *links[0].value();
  DataLinks& higher = *links[1].value();
  std::vector<std::byte> where(100, std::byte{7});
  const std::span<std::byte> piece(where);
  auto receiver = MustReceive(higher, Spec(0, 1));
  CHECK(receiver->Expect(100, {&piece, 1}).ok());
  receiver.reset();
  const auto sender = MustSend(lower, Spec(1, 1));
  const auto bytes = Pattern(100, 1);
  CHECK(PostAll(*sender, bytes).ok());
  for (int count = 0; count < 10; ++count) CHECK(lower.Progress().ok() && higher.Progress().ok());
  CHECK(where == std::vector<std::byte>(100, std::byte{7}));
  CHECK_EQ(sender->taken(), 0);
}

TEST(AnAbortReachesThePeers) {
  const auto links = LoadAll(2, {SAMPLE_TRANSPORT});
  DataLinks& lower = *links[0].value();
  DataLinks& higher = *links[1].value();
  const auto sender = MustSend(lower, Spec(1, 1));
  const auto receiver = MustReceive(higher, Spec(0, 1));
  std::vector<std::byte> where(100, std::byte{7});
  const std::span<std::byte> piece(where);
  CHECK(receiver->Expect(100, {&piece, 1}).ok());
  lower.Abort(MakeError(ErrorKind::kPeerLost, "rank 7 is dead", 7));
  CHECK(lower.Progress().error().message == "rank 7 is dead");
  const auto error = Drive(higher, [] { return false; });
  CHECK(error && error->kind == ErrorKind::kPeerLost);
  CHECK_EQ(error->culprit, 7);
  CHECK(error->message.find("rank 0 gave up: rank 7 is dead") != std::string::npos);
  CHECK(!receiver->Arrived().ok());
}

TEST(WhatIsNoTransportIsNamedOnEveryRank) {
  for (const std::string& path : {std::string("/nowhere/transport.so"), std::string("libc.so.6")}) {
    const auto links = LoadAll(2, {SAMPLE_TRANSPORT, path});
    for (const auto& each : links) {
      CHECK(!each.ok());
      CHECK(each.error().kind == ErrorKind::kConfig);
      CHECK_EQ(each.error().culprit, 1);
      CHECK(each.error().message.find(path) != std::string::npos);
      CHECK(each.error().message.find("rank 1") != std::string::npos);
    }
  }
}
