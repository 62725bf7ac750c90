// Both ends of a handshake, of which an attacker on the way changes what each one says.
#include "fuzz/input.h"
#include "support/check.h"
#include "transport/net/handshake.h"

using namespace horoacc;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const HandshakeTerms low{"secret", static_cast<LinkPurpose>(1 + input.Choose(4)), 9, 1, 4};
  HandshakeTerms high = low;
  high.rank = 2;
  if (input.Choose(4) == 0) high.epoch = input.Get<uint64_t>();
  if (input.Choose(4) == 0) high.secret = input.Text();
  bool honest = high.epoch == low.epoch && high.secret == low.secret;
  Handshake dial = std::move(Handshake::Start(low, Handshake::Side::kDial)).value();
  Handshake accept = std::move(Handshake::Start(high, Handshake::Side::kAccept)).value();
  bool accepted = false;
  Handshake* from = &dial;
  Handshake* to = &accept;
  for (int step = 0; step < 4 && !to->done(); ++step, std::swap(from, to)) {
    std::string text = from->TakeOutput();
    const std::string said = text;
    if (input.Choose(2) == 0) input.Damage(text);
    text.resize(to->wanted());
    honest = honest && text == said;
    if (step == 2) accepted = honest;
    if (!to->Feed(text).ok()) break;
  }
  CHECK_EQ(accept.done(), accepted);
  CHECK_EQ(dial.done(), honest);
  if (honest) CHECK(SameDigest(dial.keys().send, accept.keys().receive));
  return 0;
}
