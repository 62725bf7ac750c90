#pragma once
// CRC-32C (Castagnoli), which finds damage by a network or memory. It does not authenticate a peer.
#include <cstddef>
#include <cstdint>
#include <span>

namespace horoacc {

/// The checksum of `bytes`, continued from that of the bytes before.
[[nodiscard]] uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

/// The same without the processor's instruction; for tests and processors without it.
[[nodiscard]] uint32_t Crc32cByTable(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace horoacc
