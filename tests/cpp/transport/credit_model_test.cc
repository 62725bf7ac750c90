// The model check of a link over TCP with several connections: production's stripes and credits
// under all schedules, or under drawn ones where there are too many. Careless variants are caught,
// so the model can see what it looks for.
#include "model/credit_model.h"

#include <cstdio>

#include "model/replay_search.h"
#include "support/check.h"
#include "support/seeds.h"

namespace horoacc::model {
namespace {

using Search = ReplaySearch<CreditModel>;
using Shape = CreditModel::Shape;

constexpr uint64_t kStates = 60'000;
constexpr uint64_t kDrawn = 2000;

std::string WrongWith(const Shape& shape, CreditFault fault) {
  CreditModel model(shape, fault);
  Search::Report all = Search(model).All(kStates);
  std::printf("  %llu states%s\n", static_cast<unsigned long long>(all.states),
              all.complete ? "" : ", not all");
  if (!all.wrong.empty() || all.complete) return all.wrong;
  return Search(model).Walk(1, kDrawn).wrong;
}

TEST(stripes_and_credits) {
  for (const Shape& shape : {Shape{1, 1, 3}, Shape{2, 1, 2}, Shape{2, 2, 3}, Shape{3, 2, 4},
                             Shape{2, 3, 5}, Shape{4, 2, 4, 384 << 10}})
    CHECK_EQ(WrongWith(shape, CreditFault::kNone), "");
}

TEST(careless_credits_are_caught) {
  const auto caught = [](const Shape& shape, CreditFault fault, std::string_view how) {
    const std::string wrong = WrongWith(shape, fault);
    CHECK_EQ(wrong.find(how) == std::string::npos ? wrong : how, how);
  };
  caught({2, 1, 3}, CreditFault::kEarlyCredit, "it has no slot here");
  caught({2, 2, 4}, CreditFault::kCreditsAreCounts, "a credit is lost");
  caught({2, 2, 5}, CreditFault::kNewestCredit, "a message is never received");
  caught({2, 1, 2}, CreditFault::kNoSlots, "reads another message");
}

}  // namespace
}  // namespace horoacc::model
