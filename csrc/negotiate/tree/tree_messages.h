#pragma once
// What the ranks of a tree controller say to each other, and the fields that several messages have.
#include "negotiate/control_segment/segment_layout.h"
#include "negotiate/controller.h"
#include "negotiate/wire.h"

namespace horoacc {

inline constexpr uint32_t kFanOut = 4;  ///< children of a rank in the tree

/// The first byte of a message.
enum class TreeMessage : uint8_t {
  kReady = 1,
  kSplit = 2,
  kDecision = 3,
  kPlan = 4,
  kEnd = 5,
  kReject = 6,
  kJoined = 7
};

[[nodiscard]] inline Error Damaged(int source) {
  return MakeError(ErrorKind::kSystem, "a control message is damaged", source);
}

/// The kind, path and flags of a decision, in two bytes.
inline void PutKind(WireWriter& writer, const Decision& decision) {
  writer.Put(static_cast<uint8_t>(decision.kind));
  writer.Put(static_cast<uint8_t>(static_cast<int>(decision.path) << 2 |
                                  (decision.partial ? 2 : 0) | (decision.shared ? 1 : 0)));
}
inline void GetKind(WireReader& reader, Decision& decision) {
  decision.kind = static_cast<Decision::Kind>(reader.Get<uint8_t>());
  const auto flags = reader.Get<uint8_t>();
  decision.path = static_cast<Path>(flags >> 2);
  decision.partial = (flags & 2) != 0;
  decision.shared = (flags & 1) != 0;
}

/// Whether a decision that came from somebody else is one that a root could take.
[[nodiscard]] inline bool IsPossible(const Decision& decision) {
  if (static_cast<int>(decision.path) >= kPathCount) return false;
  switch (decision.kind) {
    case Decision::Kind::kRun:
    case Decision::Kind::kError:
      return true;
    case Decision::Kind::kJoin:
      return decision.ids.empty();
  }
  return false;
}

inline void Put(WireWriter& writer, const Error& error) {
  writer.Put(static_cast<uint8_t>(error.kind));
  writer.Put(static_cast<int32_t>(error.culprit));
  writer.Put(std::string_view(error.message));
}

[[nodiscard]] inline Error GetError(WireReader& reader) {
  const auto kind = reader.Get<uint8_t>();
  const auto culprit = reader.Get<int32_t>();
  if (!IsErrorKind(kind)) reader.Fail();
  std::string text = reader.GetText();
  return MakeError(static_cast<ErrorKind>(reader.ok() ? kind : 0), std::move(text), culprit);
}

inline void Put(WireWriter& writer, TensorKey key) {
  writer.Put(key.id);
  writer.Put(key.generation);
}

[[nodiscard]] inline TensorKey GetKey(WireReader& reader) {
  const auto id = reader.Get<uint32_t>();
  return {id, reader.Get<uint64_t>()};
}

}  // namespace horoacc
