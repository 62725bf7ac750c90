// What the ranks tell each other of themselves while they meet, and texts of errors.
#include <array>

#include "fuzz/input.h"
#include "support/check.h"
#include "transport/bootstrap/gather_wire.h"
#include "transport/control/rank_directory.h"
#include "transport/data/tcp/tcp_peer.h"
#include "transport/net/interfaces.h"

using namespace horoacc;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const uint32_t kind = input.Choose(7);
  const int count = static_cast<int>(input.Choose(64)) + 1;
  const std::span<const std::byte> rest = input.Rest();
  const std::vector<std::byte> bytes(rest.begin(), rest.end());
  const std::string text = TextOf(bytes);
  if (kind == 0) {
    const auto table = UnpackTable(bytes, count);
    if (table.ok()) CHECK(text.starts_with(PackTable(table.value())));
  } else if (kind == 1) {
    const auto runs = UnpackRuns(text, count);
    if (runs.ok()) CHECK_EQ(runs.value().size(), count);
  } else if (kind == 2) {
    const auto names = UnpackNames(text, count);
    if (names.ok()) CHECK(std::ssize(names.value()) <= count);
  } else if (kind == 3) {
    CHECK(IsErrorKind(static_cast<int>(UnpackError(bytes).kind)));
    CHECK(IsErrorKind(static_cast<int>(UnpackAbort(text, 1).kind)));
  } else if (kind == 6) {
    const auto addresses = RankAddresses::Unpack(text);
    if (addresses) CHECK(RankAddresses::Unpack(addresses->Pack()).has_value());
  } else {
    InterfaceOffer own{"host#boot", 1, {}};
    own.interfaces.push_back({"eth0", "10.0.0.1", "10.0.0.0", 1000, false});
    own.interfaces.push_back({"lo", "[::1]", "[::1]", 0, true});
    const auto offer = UnpackOffer(text);
    if (!offer.ok()) return 0;
    CHECK(UnpackOffer(PackOffer(offer.value())).ok());
    (void)ChooseInterfaces(std::array{own, offer.value()}, kind == 4 ? "" : "eth0,lo");
  }
  return 0;
}
