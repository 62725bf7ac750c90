#pragma once
// What waits between two ends of an inproc data link. Internal to inproc_data.cc.
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "transport/data/data_links.h"
#include "transport/net/fd.h"

namespace horoacc::inproc {

/// As the receiver names a link.
struct LinkName {
  CollectiveId collective;
  int sender = -1;
  uint8_t channel = 0;
  friend auto operator<=>(const LinkName&, const LinkName&) = default;
};

/// What a link's ends share. Letters keep it, so that a receiver may read when the sender has gone.
struct Sent {
  explicit Sent(uint32_t count) : slots(count) {}
  std::atomic<uint64_t> taken{0};
  std::vector<std::vector<std::byte>> slots;
};

struct Letter {
  LinkName link;
  uint64_t number = 0;
  uint64_t bytes = 0;
  std::vector<std::span<const std::byte>> pieces;
  std::shared_ptr<Sent> sent;
  std::vector<std::byte> copied;  ///< what a network has taken already; moving a letter keeps it
};

struct Mailbox {
  std::mutex mutex;
  std::deque<Letter> letters;
  std::optional<Error> failed;  ///< of this rank's links, by a peer or by itself
  std::vector<int> left;        ///< ranks whose links are gone, the first one first
  bool open = false;
  Fd doorbell;
};

inline void Ring(Mailbox& box) {
  const uint64_t one = 1;
  // Fails only if the counter is full, in which case the doorbell rings already.
  [[maybe_unused]] const ssize_t written = ::write(box.doorbell.get(), &one, sizeof one);
}

/// A link's messages that have come and were not released, and what was announced of them.
struct Queue {
  struct Announced {
    uint64_t bytes = 0;
    std::vector<std::span<std::byte>> where;
  };
  bool open = false;
  uint64_t released = 0;
  uint32_t delay = 0;  ///< looks until the front one is seen
  std::deque<Letter> letters;
  std::deque<Announced> announced;
};

uint64_t Length(const auto& pieces) {
  uint64_t bytes = 0;
  for (const auto& piece : pieces) bytes += piece.size();
  return bytes;
}

inline void Copy(SendPieces from, std::byte* to) {
  for (const auto& piece : from) {
    if (!piece.empty()) std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
  }
}

}  // namespace horoacc::inproc
