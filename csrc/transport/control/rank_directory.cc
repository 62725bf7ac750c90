#include "transport/control/rank_directory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"

namespace horoacc {
namespace {

constexpr size_t kTextBytes = 160;  // of packed addresses: two of IPv6
constexpr int64_t kAskAgain = kSecond;
constexpr uint64_t kDepartures = 16384;  // that are remembered; older ones of groups are forgotten

enum class Known : uint32_t { kNo = 0, kWanted = 1, kWriting = 2, kYes = 3 };

uint64_t WordOf(const Departure& departure) {
  return static_cast<uint64_t>(departure.group) << 32 | static_cast<uint32_t>(departure.rank + 1);
}

Departure DepartureOf(uint64_t word) {
  return {static_cast<uint32_t>(word >> 32), static_cast<int>(static_cast<uint32_t>(word)) - 1};
}

}  // namespace

struct RankDirectory::Card {
  std::atomic<Known> known{Known::kNo};
  std::atomic<int64_t> asked_ns{0};
  std::atomic<uint8_t> left{0};
  std::atomic<uint8_t> silent{0};
  uint8_t length = 0;
  char text[kTextBytes] = {};
};

struct RankDirectory::Header {
  alignas(64) std::atomic<uint64_t> wanted{0};  ///< questions so far
  std::atomic<uint32_t> abort_told{0};
  alignas(64) std::atomic<uint64_t> departures{0};
  struct Slot {
    std::atomic<uint64_t> word{0};
    std::atomic<uint64_t> number{0};  ///< 1 + that of the departure; stored last
  };
  Slot departed[kDepartures];
};

std::string RankAddresses::Pack() const {
  const auto shown = [](const SocketAddress& address) {
    return address.length == 0 ? std::string() : address.ToString();
  };
  return shown(control) + '\n' + shown(data);
}

std::optional<RankAddresses> RankAddresses::Unpack(const std::string& text) {
  const size_t first = text.find('\n');
  if (first == std::string::npos) return std::nullopt;
  RankAddresses addresses;
  const auto read = [](const std::string& shown, SocketAddress& address) {
    if (shown.empty()) return true;
    const auto found = NumericAddress(shown);
    if (found.ok()) address = found.value();
    return found.ok();
  };
  if (!read(text.substr(0, first), addresses.control) ||
      !read(text.substr(first + 1), addresses.data))
    return std::nullopt;
  return addresses;
}

RankDirectory::Card& RankDirectory::card(int rank) const { return cards_[rank]; }

size_t RankDirectory::BytesFor(size_t ranks) { return sizeof(Header) + ranks * sizeof(Card); }

RankDirectory::RankDirectory(std::byte* memory, size_t ranks)
    : header_(reinterpret_cast<Header*>(memory)),
      cards_(reinterpret_cast<Card*>(memory + sizeof(Header))),
      ranks_(ranks) {}

bool RankDirectory::Knows(int rank) const {
  return card(rank).known.load(std::memory_order_acquire) == Known::kYes;
}

std::optional<RankAddresses> RankDirectory::Find(int rank) const {
  Card& here = card(rank);
  if (Knows(rank)) return RankAddresses::Unpack({here.text, here.length});
  Want(here);
  return std::nullopt;
}

void RankDirectory::Want(Card& wanted) const {
  const int64_t now = NowNs();
  int64_t asked = wanted.asked_ns.load(std::memory_order_relaxed);
  if ((asked != 0 && now - asked < kAskAgain) ||
      !wanted.asked_ns.compare_exchange_strong(asked, now))
    return;
  Known expected = Known::kNo;
  wanted.known.compare_exchange_strong(expected, Known::kWanted);
  header_->wanted.fetch_add(1, std::memory_order_seq_cst);
  if (wake_) wake_();
}

std::vector<int> RankDirectory::Wanted(uint64_t& seen) const {
  std::vector<int> wanted;
  const uint64_t now = header_->wanted.load(std::memory_order_seq_cst);
  if (now == seen) return wanted;
  seen = now;
  for (size_t rank = 0; rank < ranks_; ++rank) {
    if (cards_[rank].known.load(std::memory_order_seq_cst) == Known::kWanted)
      wanted.push_back(static_cast<int>(rank));
  }
  return wanted;
}

void RankDirectory::Put(int rank, const RankAddresses& addresses) const {
  Card& here = card(rank);
  const std::string text = addresses.Pack().substr(0, kTextBytes);
  for (Known known = here.known.load();;) {
    if (known == Known::kWriting || known == Known::kYes) return;
    if (here.known.compare_exchange_weak(known, Known::kWriting)) break;
  }
  std::memcpy(here.text, text.data(), text.size());
  here.length = static_cast<uint8_t>(text.size());
  here.known.store(Known::kYes, std::memory_order_release);
}

bool RankDirectory::PutDeparture(const Departure& departure) const {
  if (departure.group == Departure::kJob) {
    if (card(departure.rank).left.exchange(1, std::memory_order_seq_cst) != 0) return false;
  } else if (HasDeparted(departure)) {
    return false;
  }
  const uint64_t number = header_->departures.fetch_add(1, std::memory_order_seq_cst);
  Header::Slot& slot = header_->departed[number % kDepartures];
  slot.word.store(WordOf(departure), std::memory_order_release);
  slot.number.store(number + 1, std::memory_order_release);
  return true;
}

bool RankDirectory::HasDeparted(const Departure& departure) const {
  if (departure.group == Departure::kJob)
    return card(departure.rank).left.load(std::memory_order_acquire) != 0;
  const uint64_t count = std::min(header_->departures.load(std::memory_order_acquire), kDepartures);
  for (uint64_t k = 0; k < count; ++k) {
    if (header_->departed[k].word.load(std::memory_order_acquire) == WordOf(departure)) return true;
  }
  return false;
}

std::vector<Departure> RankDirectory::DeparturesSince(uint64_t& seen) const {
  std::vector<Departure> departures;
  const uint64_t end = header_->departures.load(std::memory_order_seq_cst);
  if (end - seen > kDepartures) seen = end - kDepartures;
  for (; seen < end; ++seen) {
    const Header::Slot& slot = header_->departed[seen % kDepartures];
    if (slot.number.load(std::memory_order_acquire) < seen + 1) break;  // not written yet
    departures.push_back(DepartureOf(slot.word.load(std::memory_order_acquire)));
  }
  return departures;
}

void RankDirectory::SetSilent(int rank, bool silent) const {
  card(rank).silent.store(silent ? 1 : 0, std::memory_order_relaxed);
}

void RankDirectory::SetAbortTold() const { header_->abort_told.store(1); }

bool RankDirectory::AbortTold() const { return header_->abort_told.load() != 0; }

bool RankDirectory::IsSilent(int rank) const {
  return card(rank).silent.load(std::memory_order_relaxed) != 0;
}

}  // namespace horoacc
