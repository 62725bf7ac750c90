// Tags on control messages over links that have none: what an attacker on the way hands over
// instead.
#include "transport/control/sealed_links.h"

#include <functional>
#include <memory>
#include <string>

#include "support/check.h"
#include "transport/bootstrap/gather_wire.h"
#include "transport/bootstrap/inproc.h"

using namespace horoacc;

TEST(MessagesOverUnsealedLinksHaveTags) {
  const auto seal = [](std::unique_ptr<ControlLinks> links, int rank, const char* secret = "secret",
                       uint64_t epoch = 7) {
    return WithSeals(std::move(links), rank, secret, epoch);
  };
  // What an attacker hands to rank 1 as from rank 0, before rank 0's own second message.
  struct Case {
    const char* name;
    std::function<std::string(const std::string& sent)> forged;
  };
  const auto by = [&](int rank, int to, const char* secret, uint64_t epoch) {
    return [=](const std::string& sent) {
      const auto other = std::move(InprocHub::Create(3, 4096, 4096)).value();
      const auto links = seal(other->MakeControlLinks(rank), rank, secret, epoch);
      const auto plain = other->MakeControlLinks(to);
      for (int count = 0; count < 2; ++count) {
        CHECK(links->Send(to, BytesOf(sent.substr(0, 5))).ok());
        if (count == 0) CHECK(plain->Receive().value());
      }
      return TextOf(plain->Receive().value()->bytes);
    };
  };
  const Case cases[] = {
      {"repeated", [](const std::string& sent) { return sent; }},
      {"cut", [](const std::string& sent) { return sent.substr(0, 20); }},
      {"short", [](const std::string& sent) { return sent.substr(0, 3); }},
      {"empty", [](const std::string&) { return std::string(); }},
      {"another secret's", by(0, 1, "other", 7)},
      {"another epoch's", by(0, 1, "secret", 8)},
      {"another sender's", by(2, 1, "secret", 7)},
      {"another receiver's", by(0, 2, "secret", 7)},
      {"sent back", by(1, 0, "secret", 7)},
  };
  for (const Case& one : cases) {
    const auto hub = std::move(InprocHub::Create(3, 4096, 4096)).value();
    const auto zero = hub->MakeControlLinks(0);  // in the attacker's hands
    const auto receiver = seal(hub->MakeControlLinks(1), 1);
    const auto other = seal(hub->MakeControlLinks(2), 2);
    // The honest first message, and the one that would be right now.
    const auto first = std::move(InprocHub::Create(3, 4096, 4096)).value();
    const auto sender = seal(first->MakeControlLinks(0), 0);
    const auto tap = first->MakeControlLinks(1);
    CHECK(sender->Send(1, BytesOf("first")).ok() && sender->Send(1, BytesOf("later")).ok());
    const std::string sent = TextOf(tap->Receive().value()->bytes);
    const std::string later = TextOf(tap->Receive().value()->bytes);
    CHECK(zero->Send(1, BytesOf(sent)).ok());
    CHECK_EQ(TextOf(receiver->Receive().value()->bytes), "first");
    CHECK(zero->Send(1, BytesOf(one.forged(sent))).ok());
    const auto refused = receiver->Receive();
    CHECK(!refused.ok() && refused.error().culprit == 0);
    CHECK_EQ(refused.error().message,
             "lost the control link to rank 0: a message was damaged on its way, or forged");
    // Nothing more of that rank; the others go on.
    CHECK(zero->Send(1, BytesOf(later)).ok() && other->Send(1, BytesOf("other")).ok());
    CHECK_EQ(TextOf(receiver->Receive().value()->bytes), "other");
    CHECK(!receiver->Receive().value());
  }
}
