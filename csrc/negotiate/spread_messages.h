#pragma once
// What the ranks of a spread plane say to each other, and the fields that several messages have.
#include <string>
#include <utility>

#include "negotiate/plane.h"
#include "negotiate/tree_messages.h"

namespace horoacc {

/// The first byte of a message.
enum class SpreadMessage : uint8_t {
  // To the root.
  kReady = 1,
  kJoined = 2,
  kBlocked = 3,
  kReject = 4,
  kEnd = 5,     ///< and from it
  kWhoHas = 6,  ///< and the answer
  // From it.
  kDecision = 7,
  // Of any to any other.
  kReleased = 8,
  kLeft = 9,
};

/// One call as all ranks of a set name it: their ids and generations are their own affair.
struct CallName {
  bool named = false;
  std::string name;
  uint64_t number = 0;  ///< of an unnamed call
  friend auto operator<=>(const CallName&, const CallName&) = default;

  /// For errors and reports.
  [[nodiscard]] std::string Shown(Collective collective) const {
    return named ? name : std::string(NameOf(collective)) + ".noname." + std::to_string(number);
  }
};

inline void Put(WireWriter& writer, const CallName& call) {
  writer.Put(static_cast<uint8_t>(call.named));
  call.named ? writer.Put(std::string_view(call.name)) : writer.Put(call.number);
}

[[nodiscard]] inline CallName GetCallName(WireReader& reader) {
  CallName call;
  call.named = reader.Get<uint8_t>() != 0;
  if (call.named) {
    call.name = reader.GetText();
  } else {
    call.number = reader.Get<uint64_t>();
  }
  return call;
}

template <typename T>
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

/// A decision in terms that all ranks understand.
struct SpreadDecision {
  Decision decision;  ///< its ids and generations are each rank's own
  std::vector<CallName> calls;
};

void Put(WireWriter& writer, const SpreadDecision& spread);
[[nodiscard]] SpreadDecision GetSpreadDecision(WireReader& reader);

}  // namespace horoacc
