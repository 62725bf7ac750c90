#include "negotiate/control_segment/outbox.h"

#include <algorithm>
#include <array>
#include <string>

namespace horoacc {
namespace {

// An item: its kind, tensor, value and count, the error's kind, culprit and length; then its text.
constexpr uint32_t kItemWords = 10;
// Each id is ready once before the leader has taken it, and each rank joins and ends once.
constexpr uint64_t kReserved = uint64_t{kItemWords} * (kIds + 8192);
static_assert(kOutboxWords > kReserved + kLongestText);

constexpr bool MayWait(OutboxItem::Kind kind) {
  switch (kind) {
    case OutboxItem::Kind::kReady:
    case OutboxItem::Kind::kJoined:
    case OutboxItem::Kind::kEnd:
    case OutboxItem::Kind::kReleased:
      return false;
    default:
      return true;
  }
}

}  // namespace

bool Outbox::Put(const OutboxItem& item) const {
  const auto text_bytes = static_cast<uint32_t>(std::min(item.error.message.size(), kLongestText));
  const uint64_t length = kItemWords + (text_bytes + 3) / 4;
  uint64_t at = header_->put.load(std::memory_order_relaxed);
  const uint64_t used = at - header_->taken.load(std::memory_order_relaxed);
  if (used + length + (MayWait(item.kind) ? kReserved : 0) > kOutboxWords) return false;
  const auto word = [&](uint64_t value) {
    words_[at++ % kOutboxWords] = static_cast<uint32_t>(value);
  };
  word(static_cast<uint32_t>(item.kind));
  word(item.tensor.id);
  word(item.tensor.generation);
  word(item.tensor.generation >> 32);
  word(item.value);
  word(item.count);
  word(item.count >> 32);
  word(static_cast<uint32_t>(item.error.kind));
  word(static_cast<uint32_t>(item.error.culprit));
  word(text_bytes);
  for (uint32_t byte = 0; byte < text_bytes; byte += 4) {
    uint32_t packed = 0;
    for (uint32_t k = 0; k < 4 && byte + k < text_bytes; ++k) {
      packed |= static_cast<uint32_t>(static_cast<unsigned char>(item.error.message[byte + k]))
                << (8 * k);
    }
    word(packed);
  }
  header_->put.store(at, std::memory_order_release);
  return true;
}

std::vector<OutboxItem> Outbox::TakeAll() const {
  std::vector<OutboxItem> items;
  uint64_t at = header_->taken.load(std::memory_order_relaxed);
  const uint64_t end = header_->put.load(std::memory_order_acquire);
  while (at != end) {
    std::array<uint32_t, kItemWords> w;
    for (uint32_t& word : w) word = words_[at++ % kOutboxWords];
    OutboxItem& item = items.emplace_back();
    item.kind = static_cast<OutboxItem::Kind>(w[0]);
    item.tensor = {w[1], static_cast<uint64_t>(w[3]) << 32 | w[2]};
    item.value = w[4];
    item.count = static_cast<uint64_t>(w[6]) << 32 | w[5];
    std::string text;
    for (uint32_t byte = 0; byte < w[9]; ++byte) {
      text.push_back(static_cast<char>(words_[(at + byte / 4) % kOutboxWords] >> (8 * (byte % 4))));
    }
    at += (w[9] + 3) / 4;
    item.error = MakeError(static_cast<ErrorKind>(w[7]), std::move(text), static_cast<int>(w[8]));
  }
  header_->taken.store(at, std::memory_order_release);
  return items;
}

}  // namespace horoacc
