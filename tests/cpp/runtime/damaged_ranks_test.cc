// What comes over a connection is damaged, again and again: all ranks are told, leave, and meet
// once more in the same processes. `make asan` is where this says most.
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "support/process_jobs.h"

namespace horoacc::testing {
namespace {

constexpr size_t kBig = 1 << 18;  ///< float32 numbers: 1 MiB, many frames

/// The connections of this process over TCP: control links and streams of data links.
std::vector<int> Connections() {
  std::vector<int> found;
  for (const std::string& name : Listing("/proc/self/fd")) {
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const int fd = std::stoi(name);
    sockaddr_in peer{};
    socklen_t length = sizeof peer;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0 &&
        peer.sin_family == AF_INET)
      found.push_back(fd);
  }
  return found;
}

/// Says what no rank says, on one of the connections; of some nobody takes any notice by now.
void Damage(int turn) {
  const std::vector<int> connections = Connections();
  CHECK(!connections.empty());
  const std::string noise(300, static_cast<char>(turn));
  const int fd = connections[static_cast<size_t>(turn) % connections.size()];
  (void)::send(fd, noise.data(), noise.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void DamagedAgainAndAgain(int size, int rounds, const Pairs& settings) {
  Job job(size);
  job.Start([&](int rank) {
    std::vector<float> data(kBig), few(10);
    for (int round = 0; round < rounds; ++round) {
      const OwnedEngine engine = job.Engine(rank, settings);
      const int culprit = round % size;
      for (int step = 0;; ++step) {
        data.assign(kBig, 1.0f);
        few.assign(10, 1.0f);
        if (step >= 3 && rank == culprit) Damage(round + step);
        Call big(engine.get(), "big", data.data(), kBig);
        Call small(engine.get(), "small", few.data(), few.size());
        const int code = big.Wait();
        const int other = small.Wait();
        if (code == HA_OK && other == HA_OK) {
          CHECK(step < 1000);
          continue;
        }
        CHECK(code == HA_OK || code == HA_PEER_LOST);
        CHECK_EQ(other == HA_OK ? code : other, HA_PEER_LOST);
        const ha_error& told = code != HA_OK ? big.error() : small.error();
        CHECK(told.culprit >= 0 && told.culprit < size);
        CHECK(Contains(told.message, "rank"));
        break;
      }
      CHECK_EQ(ha_engine_shutdown(engine.get(), nullptr), HA_OK);
    }
    return 0;
  });
  job.CheckEnds();
}

Pairs Apart(const char* hosts, const char* mac) {
  return {{"simulated_hosts", hosts}, {"link_mac", mac},      {"log_level", "fatal"},
          {"tcp_streams", "2"},       {"tcp_checksums", "1"}, {"algorithm", "canonical"}};
}

TEST(two_ranks_on_hosts_of_their_own) {
  for (const char* const mac : {"none", "auto"}) DamagedAgainAndAgain(2, 12, Apart("1+1", mac));
}

TEST(four_ranks_on_two_hosts) { DamagedAgainAndAgain(4, 12, Apart("2+2", "auto")); }

}  // namespace
}  // namespace horoacc::testing
