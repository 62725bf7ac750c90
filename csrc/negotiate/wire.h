#pragma once
// The wire form of control messages: little-endian fields, every length checked on reading.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "negotiate/controller.h"

namespace horoacc {

class WireWriter {
 public:
  template <typename T>
    requires std::is_arithmetic_v<T>
  void Put(T value) {
    bytes_.resize(bytes_.size() + sizeof value);
    std::memcpy(bytes_.data() + bytes_.size() - sizeof value, &value, sizeof value);
  }
  void Put(std::string_view text);
  void Put(const Request& request);
  /// The bytes without their number: the rest of a message.
  void PutBytes(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  /// The bytes behind their number.
  void PutBlock(std::span<const std::byte> bytes) {
    Put(static_cast<uint32_t>(bytes.size()));
    PutBytes(bytes);
  }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// Reads the bytes of a peer. After a field that does not fit, ok() is false and every further read
/// gives zeroes: callers check once, at the end.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
    requires std::is_arithmetic_v<T>
  T Get() {
    T value{};
    if (Take(sizeof value)) std::memcpy(&value, bytes_.data() + at_ - sizeof value, sizeof value);
    return value;
  }
  std::string GetText();
  Request GetRequest();
  std::vector<std::byte> GetBlock();
  /// A count of items of at least `item_bytes` each; not ok if that many cannot follow.
  uint32_t GetCount(size_t item_bytes);
  /// A value that was read is impossible: not ok from here on.
  void Fail() { ok_ = false; }
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] bool at_end() const { return at_ == bytes_.size(); }

 private:
  bool Take(size_t bytes);
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  bool ok_ = true;
};

template <typename T>
  requires std::is_arithmetic_v<T>
void Put(WireWriter& writer, const std::vector<T>& values) {
  writer.Put(static_cast<uint32_t>(values.size()));
  for (const T value : values) writer.Put(value);
}

template <typename T>
[[nodiscard]] std::vector<T> GetList(WireReader& reader) {
  std::vector<T> values(reader.GetCount(sizeof(T)));
  for (T& value : values) value = reader.Get<T>();
  return values;
}

void Put(WireWriter& writer, const Error& error);
[[nodiscard]] Error GetError(WireReader& reader);

/// The parts of a decision that ranks of other hosts understand: not its slot, ids and generations,
/// nor whether its buffers are in shared memory.
void Put(WireWriter& writer, const Decision& decision);
[[nodiscard]] Decision GetDecision(WireReader& reader);

[[nodiscard]] inline Error Damaged(int source) {
  return MakeError(ErrorKind::kSystem, "a control message is damaged", source);
}

}  // namespace horoacc
