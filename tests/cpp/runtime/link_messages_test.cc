// What a rank of another host says of its messages, damaged and out of turn: it may be refused, and
// nothing more.
#include <random>

#include "support/seeds.h"
#include "support/two_ranks.h"

namespace horoacc::testing {
namespace {

using Kind = MessageHeader::Kind;

constexpr size_t kSmall = 100, kBig = 3 << 20;

const MessageHeader kSmallOffer{.kind = Kind::kSmall, .tag = 1, .number = 1, .bytes = kSmall};
const MessageHeader kBigOffer{.kind = Kind::kOffer, .tag = 2, .number = 2, .bytes = kBig};

TEST(a_small_and_a_big_message_arrive) {
  TwoRanks ranks;
  ranks.Expect(1, kSmall);
  ranks.Expect(2, kBig);
  ranks.Say(kBigOffer);
  ranks.Say(kSmallOffer);
  ranks.Say(std::vector<std::byte>(kSmall));
  for (int turn = 0; turn < 20; ++turn) {
    if (turn < 3) ranks.SayWindow(2, 1 << 20);
    CHECK(ranks.Turn().ok());
  }
  CHECK_EQ(ranks.good(), 2);
}

TEST(a_second_offer_of_one_name_takes_no_second_receive) {
  TwoRanks ranks;
  ranks.Expect(2, kBig);
  ranks.Expect(2, kBig);
  ranks.Say(kBigOffer);
  for (int turn = 0; turn < 5; ++turn) CHECK(ranks.Turn().ok());
  ranks.Say(kBigOffer);
  Status refused;
  for (int turn = 0; turn < 5 && refused.ok(); ++turn) refused = ranks.Turn();
  CHECK_EQ(refused.error().culprit, 1);
  ranks.DropAll();
  CHECK_EQ(ranks.ended(), 2);
}

TEST(a_message_that_is_withdrawn_on_its_way_ends_its_receive) {
  TwoRanks ranks;
  ranks.Expect(2, kBig);
  ranks.Say(kBigOffer);
  ranks.SayWindow(2, 1 << 20);
  for (int turn = 0; turn < 5; ++turn) CHECK(ranks.Turn().ok());
  ranks.Say({.kind = Kind::kWithdrawn, .number = 2});
  for (int turn = 0; turn < 5; ++turn) CHECK(ranks.Turn().ok());
  CHECK_EQ(ranks.ended(), 1);
  CHECK_EQ(ranks.good(), 0);
}

TEST(a_sender_that_gives_up_waits_until_the_receiver_reads_no_more) {
  TwoRanks ranks;
  ranks.Offer(1, kBig);
  ranks.Say({.kind = Kind::kWant, .number = 1});
  for (int turn = 0; turn < 5; ++turn) CHECK(ranks.Turn().ok());
  ranks.GiveUpOffer();
  ranks.GiveUpOffer();
  for (int turn = 0; turn < 5; ++turn) CHECK(ranks.Turn().ok());
  CHECK_EQ(ranks.ended(), 0);
  ranks.Say({.kind = Kind::kRefused, .number = 1, .bytes = LinkMessages::kGaveUp});
  for (int turn = 0; turn < 5; ++turn) CHECK(ranks.Turn().ok());
  CHECK_EQ(ranks.ended(), 1);
  CHECK(ranks.last_outcome().error().kind == ErrorKind::kTimeout);
}

TEST(damaged_headers_do_no_harm) {
  const std::vector<MessageHeader> honest = {
      kSmallOffer,
      kBigOffer,
      {.kind = Kind::kWant, .number = 1},
      {.kind = Kind::kRefused, .number = 1, .bytes = 7},
      {.kind = Kind::kWithdrawn, .number = 2},
      {.kind = Kind::kMatched, .bytes = 300},
  };
  std::mt19937_64 random(2);
  for (int job = 0; job < 300; ++job) {
    check::ReseedHalfway(random, job, 300);
    TwoRanks ranks;
    for (const int32_t tag : {1, 2, 3}) ranks.Expect(tag, tag == 1 ? kSmall : kBig);
    ranks.Offer(1, kBig);  // its number is 1
    Status heard;
    for (int k = 0; k < 20 && heard.ok(); ++k) {
      MessageHeader header = honest[random() % honest.size()];
      const bool says_small = header.kind == Kind::kSmall;
      const auto bytes = std::as_writable_bytes(std::span(&header, 1));
      for (uint64_t strokes = random() % 3; strokes > 0; --strokes)
        bytes[random() % sizeof(header)] ^= std::byte{1} << (random() % 8);
      if (random() % 20 > 0) header.check = header.Checksum();
      ranks.Say(bytes.first(random() % 20 == 0 ? random() % sizeof(header) : sizeof(header)));
      if (says_small) ranks.Say(std::vector<std::byte>(kSmall));
      if (k % 3 == 0) ranks.SayWindow(2, random() % 4 == 0 ? random() % 1000 : 1 << 20);
      heard = ranks.Turn();
    }
    ranks.DropAll();
    CHECK_EQ(ranks.ended(), 4);
  }
}

}  // namespace
}  // namespace horoacc::testing
