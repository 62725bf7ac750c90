#pragma once
// Ends of data links in tests: patterns, and driving them until something is true.
#include <poll.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "support/check.h"
#include "support/tcp_jobs.h"
#include "transport/bootstrap/inproc.h"
#include "transport/data/tcp/tcp_data_links.h"

namespace horoacc::testing {

inline std::vector<std::byte> Pattern(size_t length, uint64_t seed) {
  std::vector<std::byte> bytes(length);
  for (size_t at = 0; at < length; ++at) {
    bytes[at] = static_cast<std::byte>((at * 31 + (at >> 9) * 7 + seed * 13) & 0xff);
  }
  return bytes;
}

inline std::vector<std::byte> Gather(const Arrival& arrival) {
  std::vector<std::byte> bytes;
  for (const auto& piece : arrival.pieces) bytes.insert(bytes.end(), piece.begin(), piece.end());
  return bytes;
}

/// Sleeps until there may be something to do.
inline void Doze(const DataLinks& links) {
  pollfd wait{links.WaitFd(), POLLIN, 0};
  const int timeout = links.MustPoll() ? 1 : 200;
  ::poll(wait.fd >= 0 ? &wait : nullptr, wait.fd >= 0 ? 1 : 0, timeout);
}

#ifdef __SANITIZE_THREAD__  // on two cores the same takes minutes
constexpr int64_t kDriveLimit = 600 * kSecond;
#else
constexpr int64_t kDriveLimit = 60 * kSecond;
#endif

/// Drives the links of one rank until `done`, or too long; the error that ended it, if any.
inline std::optional<Error> Drive(DataLinks& links, const std::function<bool()>& done) {
  const int64_t deadline = NowNs() + kDriveLimit;
  while (!done()) {
    const auto moved = links.Progress();
    if (!moved.ok()) return moved.error();
    if (moved.value() || done()) continue;
    if (NowNs() > deadline) return MakeError(ErrorKind::kTimeout, "nothing happened");
    Doze(links);
  }
  return std::nullopt;
}

inline TcpDataOptions DataOptions(int streams = 0) {
  TcpDataOptions options;
  options.secret = "the job's secret";
  options.epoch = 3;
  options.streams = streams;
  options.timeout_ns = 20 * kSecond;
  return options;
}

/// Links of all ranks; `adapt` may change a rank's options.
inline std::vector<std::unique_ptr<TcpDataLinks>> ListenAll(
    int size, int streams = 0,
    const std::function<void(int, TcpDataOptions&)>& adapt = [](int, TcpDataOptions&) {},
    bool on_hosts_of_their_own = false) {
  const auto hub = std::move(InprocHub::Create(size, 4096, 4096)).value();
  std::vector<std::unique_ptr<TcpDataLinks>> links(size);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      TcpDataOptions options = DataOptions(streams);
      adapt(rank, options);
      const auto bootstrap = hub->MakeBootstrap(rank);
      const bool apart = on_hosts_of_their_own;
      auto listening =
          ListenOnAll(*bootstrap, options, apart ? std::to_string(rank) : "one", apart ? "lo" : "");
      if (!listening.ok()) check::Fail(__FILE__, __LINE__, listening.error().message);
      links[rank] = std::move(listening).value();
    });
  }
  return links;
}

/// Runs `body(rank)` in a thread of each rank.
inline void InThreads(int size, const std::function<void(int)>& body) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back([&body, rank] { body(rank); });
}

inline LinkSpec Spec(int peer, uint64_t sequence, uint8_t channel = 0, uint32_t slots = 2,
                     uint64_t slot_bytes = 32 << 20) {
  return {{0, sequence}, peer, channel, slots, slot_bytes};
}

inline std::unique_ptr<SendLink> MustSend(DataLinks& links, const LinkSpec& spec) {
  auto opened = links.OpenSend(spec);
  if (!opened.ok()) check::Fail(__FILE__, __LINE__, opened.error().message);
  return std::move(opened).value();
}

inline std::unique_ptr<ReceiveLink> MustReceive(DataLinks& links, const LinkSpec& spec) {
  auto opened = links.OpenReceive(spec);
  if (!opened.ok()) check::Fail(__FILE__, __LINE__, opened.error().message);
  return std::move(opened).value();
}

inline Status PostAll(SendLink& link, const std::vector<std::byte>& bytes) {
  const std::span<const std::byte> piece(bytes);
  return link.Post({&piece, 1});
}

/// Whether the oldest message is there; an error ends the test.
inline const Arrival* Look(ReceiveLink& link) {
  const auto arrived = link.Arrived();
  if (!arrived.ok()) check::Fail(__FILE__, __LINE__, arrived.error().message);
  return arrived.value();
}

}  // namespace horoacc::testing
