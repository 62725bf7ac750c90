#pragma once
// The ways to seal, for tests that go through all of them, and the keys of a connection.
#include <string>
#include <utility>
#include <vector>

#include "support/check.h"
#include "transport/net/handshake.h"
#include "transport/net/sealing.h"

namespace horoacc::testing {

/// The machine that runs the tests has a libcrypto.
inline Sealing SealingBy(SealKind kind) {
  Sealing sealing{kind};
  auto library = Libcrypto::Load("");
  if (!library.ok()) check::Fail(__FILE__, __LINE__, library.error().message);
  sealing.library = std::move(library).value();
  return sealing;
}

inline const std::vector<Sealing>& AllSealings() {
  static const std::vector<Sealing> all = {SealingBy(SealKind::kHmac), SealingBy(SealKind::kGmac),
                                           SealingBy(SealKind::kGcm)};
  return all;
}

/// The keys of the end that dials and of the one that accepts, after their handshake.
struct ConnectionKeys {
  LinkKeys dial;
  LinkKeys accept;
};

inline ConnectionKeys Shake(const HandshakeTerms& dials, const HandshakeTerms& accepts) {
  Handshake dial = Handshake::Start(dials, Handshake::Side::kDial).value();
  Handshake accept = Handshake::Start(accepts, Handshake::Side::kAccept).value();
  while (!dial.done() || !accept.done()) {
    if (const std::string bytes = dial.TakeOutput(); !bytes.empty()) CHECK(accept.Feed(bytes).ok());
    if (const std::string bytes = accept.TakeOutput(); !bytes.empty()) CHECK(dial.Feed(bytes).ok());
  }
  return {dial.keys(), accept.keys()};
}

inline ConnectionKeys Shake() {
  return Shake({"secret", LinkPurpose::kControl, 7, 1, 4},
               {"secret", LinkPurpose::kControl, 7, 2, 4});
}

}  // namespace horoacc::testing
