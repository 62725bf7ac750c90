#include "transport/bootstrap/gather_wire.h"

#include <algorithm>
#include <cstring>

namespace horoacc {
namespace {

template <typename T>
void Put(std::string& text, T value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
bool Take(std::span<const std::byte>& bytes, T* value) {
  if (bytes.size() < sizeof(T)) return false;
  std::memcpy(value, bytes.data(), sizeof(T));
  bytes = bytes.subspan(sizeof(T));
  return true;
}

}  // namespace

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string PackError(const Error& error) {
  std::string text;
  Put(text, static_cast<int32_t>(error.kind));
  Put(text, static_cast<int32_t>(error.culprit));
  return text + error.message;
}

Error UnpackError(std::span<const std::byte> bytes) {
  int32_t kind = 0;
  int32_t culprit = -1;
  if (!Take(bytes, &kind) || !Take(bytes, &culprit) || !IsErrorKind(kind)) {
    return MakeError(ErrorKind::kSystem, "rank 0 reported a failure without a reason", 0);
  }
  return MakeError(static_cast<ErrorKind>(kind), TextOf(bytes), culprit);
}

std::string PackTable(const std::vector<std::string>& blobs) {
  std::string text;
  for (const std::string& blob : blobs) {
    Put(text, static_cast<uint64_t>(blob.size()));
    text += blob;
  }
  return text;
}

Result<std::vector<std::string>> UnpackTable(std::span<const std::byte> bytes, int size) {
  std::vector<std::string> blobs;
  for (int rank = 0; rank < size; ++rank) {
    uint64_t length = 0;
    if (!Take(bytes, &length) || length > bytes.size()) {
      return MakeError(ErrorKind::kSystem, "rank 0 sent a broken table", 0);
    }
    blobs.push_back(TextOf(bytes.first(length)));
    bytes = bytes.subspan(length);
  }
  return blobs;
}

std::string NamesOfMissing(const std::vector<bool>& present) {
  constexpr int kNamed = 10;
  std::string names;
  int count = 0;
  for (size_t rank = 0; rank < present.size(); ++rank) {
    if (present[rank] || ++count > kNamed) continue;
    names += (names.empty() ? "" : ", ") + std::to_string(rank);
  }
  if (count > kNamed) names += " and " + std::to_string(count - kNamed) + " more";
  return names;
}

Error StillMissing(const std::vector<bool>& present) {
  const auto first = std::ranges::find(present, false) - present.begin();
  return MakeError(ErrorKind::kTimeout,
                   "bootstrap: still waiting for rank(s) " + NamesOfMissing(present),
                   static_cast<int>(first));
}

int64_t WithVerdictGrace(int64_t deadline_ns) {
  return deadline_ns + std::min(kVerdictGraceNs, INT64_MAX - deadline_ns);
}

}  // namespace horoacc
