#pragma once
// CRC-32C (Castagnoli), which finds what a network or a memory damaged. It is no proof against a
// unauthenticated peer: anybody can compute it.
#include <cstddef>
#include <cstdint>
#include <span>

namespace horoacc {

/// Of `bytes`, going on from the checksum of what came before them.
[[nodiscard]] uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

/// The same without the processor's instruction; for tests and processors without it.
[[nodiscard]] uint32_t Crc32cByTable(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace horoacc
