#pragma once
// The memory of a sending link's slots, for messages without memory of their own, allocated at
// first use; and the checks that all kinds of links share.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "base/result.h"
#include "transport/data/data_links.h"

namespace horoacc {

class SlotMemory {
 public:
  SlotMemory(uint32_t slots, uint64_t slot_bytes)
      : slots_(slots), stride_(std::max((slot_bytes + kLine - 1) / kLine * kLine, kLine)) {}

  /// The slot of a message, aligned to 64 bytes.
  Result<std::byte*> Of(uint64_t number) {
    if (memory_ == nullptr) {
      memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kLine, stride_ * slots_)));
    }
    if (memory_ == nullptr) return MakeError(ErrorKind::kSystem, "no memory for a link's slots");
    return memory_.get() + number % slots_ * stride_;
  }
  /// How many bytes of a message lie in its slot.
  [[nodiscard]] uint64_t Share(SendPieces pieces) const {
    uint64_t bytes = 0;
    for (const auto& piece : pieces) {
      const bool own = memory_ != nullptr && piece.data() >= memory_.get() &&
                       piece.data() < memory_.get() + stride_ * slots_;
      if (own) bytes += piece.size();
    }
    return bytes;
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  static constexpr uint64_t kLine = 64;

  const uint64_t slots_;
  const uint64_t stride_;
  std::unique_ptr<std::byte, Free> memory_;
};

/// kInvalid for a message without a free slot, or longer than one.
inline Status CheckPost(const LinkSpec& spec, uint64_t number, uint64_t taken, uint64_t bytes) {
  if (number - taken >= spec.slots) {
    return MakeError(ErrorKind::kInvalid, "a message is posted to a link without a free slot");
  }
  if (bytes > spec.slot_bytes) {
    return MakeError(ErrorKind::kInvalid, "a message of " + std::to_string(bytes) +
                                              " bytes is posted to a slot of " +
                                              std::to_string(spec.slot_bytes));
  }
  return {};
}

/// The same for Expect.
inline Status CheckExpect(const LinkSpec& spec, uint64_t waiting, uint64_t bytes,
                          ReceivePieces where) {
  if (waiting >= spec.slots) {
    return MakeError(ErrorKind::kInvalid, "more messages are expected than the link has slots");
  }
  if (bytes > spec.slot_bytes) {
    return MakeError(ErrorKind::kInvalid, "a message of " + std::to_string(bytes) +
                                              " bytes is expected in a slot of " +
                                              std::to_string(spec.slot_bytes));
  }
  uint64_t room = 0;
  for (const auto& piece : where) room += piece.size();
  if (!where.empty() && room != bytes) {
    return MakeError(ErrorKind::kInvalid, "the place for a message of " + std::to_string(bytes) +
                                              " bytes has " + std::to_string(room));
  }
  return {};
}

}  // namespace horoacc
