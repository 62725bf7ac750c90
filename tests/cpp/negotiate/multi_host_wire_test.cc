// What the leaders of hosts tell each other, damaged and out of turn: decisions on their way
// down, and news on its way up. It may be refused, and nothing more.
#include <random>

#include "support/multi_host_views.h"
#include "support/seeds.h"

namespace horoacc::testing {
namespace {

/// Flips, drops, doubles or overwrites bytes.
void Damage(Bytes& bytes, std::mt19937_64& random) {
  for (uint64_t strokes = 1 + random() % 3; strokes > 0 && !bytes.empty(); --strokes) {
    const auto at = bytes.begin() + static_cast<ptrdiff_t>(random() % bytes.size());
    switch (random() % 4) {
      case 0:
        *at ^= std::byte{1} << (random() % 8);
        break;
      case 1:
        *at = static_cast<std::byte>(random());
        break;
      case 2:
        bytes.erase(at, at + static_cast<ptrdiff_t>(1 + random() % (bytes.end() - at)));
        break;
      default:
        bytes.insert(at, 1 + random() % 8, static_cast<std::byte>(random()));
    }
  }
}

constexpr int kRanks = 4;
const std::vector<int> kHosts{2, 2};  // 0 leads the first and is the root, 2 the other

/// Every message of a few steps, a disagreement and a question among them: by receiver.
std::vector<std::pair<int, ControlMessage>> Honest() {
  std::vector<std::pair<int, ControlMessage>> all;
  MultiHostViews ranks(kHosts);
  const auto deliver = [&] {
    for (auto& message : ranks.Deliver()) all.push_back(std::move(message));
  };
  for (int step = 0; step < 3; ++step) {
    for (const char* name : {"a", "b"}) {
      for (int rank = kRanks - 1; rank >= 0; --rank)
        CHECK(ranks.Announce(rank, name, Collective::kAllreduce).ok());
    }
    CHECK(ranks.controller(3).WhoHas(std::nullopt).ok());
    deliver();
    for (int rank = 0; rank < kRanks; ++rank) {
      CHECK(ranks.Carry(rank).has_value());
      while (ranks.Carry(rank)) continue;
    }
    deliver();
  }
  for (int rank = kRanks - 1; rank >= 0; --rank) {
    const auto collective = rank == 2 ? Collective::kAllgather : Collective::kAllreduce;
    CHECK(ranks.Announce(rank, "c", collective).ok());
  }
  deliver();
  for (int rank = 0; rank < kRanks; ++rank) CHECK(ranks.Carry(rank).has_value());
  CHECK(ranks.controller(1).Join(0).ok());
  CHECK(ranks.controller(2).End(SetEnd::Left(2)).ok());
  deliver();
  CHECK(all.size() > 12);
  return all;
}

TEST(damaged_news_and_decisions_do_no_harm) {
  const auto honest = Honest();
  std::mt19937_64 random(1);
  for (int job = 0; job < 150; ++job) {
    check::ReseedHalfway(random, job, 150);
    MultiHostViews ranks(kHosts);
    for (int rank = 0; rank < kRanks; ++rank) {
      CHECK(ranks.Announce(rank, "a", Collective::kAllreduce).ok());
      if (rank % 2 == 0) CHECK(ranks.Announce(rank, "b", Collective::kAllreduce).ok());
    }
    if (job % 2 == 0) (void)ranks.Deliver();
    for (int k = 0; k < 40; ++k) {
      auto [receiver, message] = honest[random() % honest.size()];
      if (k % 4 != 0) Damage(message.bytes, random);
      (void)ranks.Give(receiver, message.source, std::move(message.bytes));
      (void)ranks.Carry(static_cast<int>(random() % kRanks));
    }
  }
}

TEST(garbage_is_refused) {
  MultiHostViews ranks(kHosts);
  CHECK(!ranks.Give(0, 2, {}).ok());
  CHECK(!ranks.Give(0, 2, Bytes(3)).ok());
  CHECK(!ranks.Give(0, 2, Bytes(100, std::byte{0})).ok());  // set 0, unknown kind
  const Status refused = ranks.Give(0, 2, Bytes(4));        // no kind
  CHECK(refused.error().kind == ErrorKind::kSystem);
  CHECK_EQ(refused.error().culprit, 2);
}

TEST(truncated_news_and_decisions_do_no_harm) {
  for (const auto& [receiver, message] : Honest()) {
    for (size_t length = 0; length < message.bytes.size(); ++length) {
      MultiHostViews ranks(kHosts);
      for (int rank = 0; rank < kRanks; ++rank)
        CHECK(ranks.Announce(rank, "a", Collective::kAllreduce).ok());
      // A copy of its own size, so that a sanitizer sees a read past the end.
      const auto end = message.bytes.begin() + static_cast<ptrdiff_t>(length);
      (void)ranks.Give(receiver, message.source, Bytes(message.bytes.begin(), end));
      (void)ranks.Carry(receiver);
    }
  }
}

}  // namespace
}  // namespace horoacc::testing
