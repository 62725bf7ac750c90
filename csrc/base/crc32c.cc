#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

namespace horoacc {
namespace {

constexpr std::array<uint32_t, 256> MakeTable() {
  constexpr uint32_t kPolynomial = 0x82f63b78;  // bits reflected
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    table[byte] = value;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = MakeTable();

// Of a CPU with instructions for it.
#if defined(__x86_64__)
#define HA_CRC32C [[gnu::target("sse4.2")]]
using CrcState = uint64_t;
bool HasInstructions() { return __builtin_cpu_supports("sse4.2") != 0; }
HA_CRC32C inline CrcState Add(CrcState state, uint64_t word) { return _mm_crc32_u64(state, word); }
HA_CRC32C inline CrcState Add(CrcState state, uint8_t byte) {
  return _mm_crc32_u8(static_cast<uint32_t>(state), byte);
}
#elif defined(__aarch64__)
#define HA_CRC32C [[gnu::target("+crc")]]
using CrcState = uint32_t;
bool HasInstructions() { return (::getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
HA_CRC32C inline CrcState Add(CrcState state, uint64_t word) { return __crc32cd(state, word); }
HA_CRC32C inline CrcState Add(CrcState state, uint8_t byte) { return __crc32cb(state, byte); }
#endif

#if defined(HA_CRC32C)
HA_CRC32C uint32_t ByInstructions(std::span<const std::byte> bytes, uint32_t before) {
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  CrcState state = before;
  for (; left >= sizeof(uint64_t); left -= sizeof(uint64_t), at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, at, sizeof(word));
    state = Add(state, word);
  }
  for (; left > 0; --left, ++at) state = Add(state, std::to_integer<uint8_t>(*at));
  return static_cast<uint32_t>(state);
}
#endif

}  // namespace

uint32_t Crc32cByTable(std::span<const std::byte> bytes, uint32_t before) {
  uint32_t state = ~before;
  for (const std::byte byte : bytes) {
    state = (state >> 8) ^ kTable[(state ^ std::to_integer<uint32_t>(byte)) & 0xff];
  }
  return ~state;
}

uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t before) {
#if defined(HA_CRC32C)
  static const bool kHasInstructions = HasInstructions();
  if (kHasInstructions) return ~ByInstructions(bytes, ~before);
#endif
  return Crc32cByTable(bytes, before);
}

}  // namespace horoacc
