#pragma once
// The bytes of one input of a fuzzer, taken in turn; behind their end come zeroes.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace horoacc::fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : left_(std::as_bytes(std::span(data, size))) {}
  [[nodiscard]] bool empty() const { return left_.empty(); }
  template <typename T>
  T Get() {
    T value{};
    const size_t part = std::min(sizeof(T), left_.size());
    std::memcpy(&value, left_.data(), part);
    left_ = left_.subspan(part);
    return value;
  }
  /// One of so many.
  uint32_t Choose(uint32_t count) { return Get<uint8_t>() % count; }
  /// At most `most` bytes, as many as the next byte says; a copy of its own size, so that a
  /// sanitizer sees a read past the end.
  std::vector<std::byte> Bytes(size_t most = 255) {
    const size_t count = std::min({size_t{Get<uint8_t>()}, most, left_.size()});
    std::vector<std::byte> bytes(left_.begin(), left_.begin() + static_cast<ptrdiff_t>(count));
    left_ = left_.subspan(count);
    return bytes;
  }
  std::string Text(size_t most = 255) {
    const std::vector<std::byte> bytes = Bytes(most);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  /// Everything that is left.
  std::span<const std::byte> Rest() { return std::exchange(left_, {}); }
  /// Changes bytes at a few places.
  template <typename Container>
  void Damage(Container& bytes) {
    for (uint32_t strokes = Choose(4); strokes > 0 && !bytes.empty(); --strokes) {
      const size_t at = Get<uint16_t>() % bytes.size();
      bytes[at] = static_cast<typename Container::value_type>(Get<uint8_t>());
    }
    if (Choose(8) == 0) bytes.resize(Get<uint16_t>() % (bytes.size() + 1));
  }

 private:
  std::span<const std::byte> left_;
};

}  // namespace horoacc::fuzz

/// One input; libFuzzer's name.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
