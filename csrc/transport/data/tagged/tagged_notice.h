#pragma once
// What the two ends of a tagged link tell each other beside the messages: fixed in size, with a tag
// of its own.
#include <cstdint>

#include "transport/data/data_links.h"

namespace horoacc {

enum class NoticeKind : uint8_t { kGrant = 1, kCredit = 2, kAbort = 3 };

struct Notice {
  uint32_t magic = kMagic;
  NoticeKind kind = NoticeKind::kGrant;
  uint8_t channel = 0;
  uint16_t reserved = 0;
  uint64_t epoch = 0;
  uint64_t sequence = 0;
  uint32_t set = 0;
  uint32_t tag = 0;     ///< of a grant
  uint64_t number = 0;  ///< of a credit: messages released so far; of an abort: kind of error
  int64_t culprit = -1;
  char text[208] = "";

  static constexpr uint32_t kMagic = 0x4e434148;  // "HACN"
  [[nodiscard]] LinkKey key() const { return {{set, sequence}, channel}; }
};
static_assert(sizeof(Notice) == 256);

/// A notice on its way. What the carrier has not taken when the links go stays for good.
struct Posted {
  Notice notice;
  void* request = nullptr;
};

}  // namespace horoacc
