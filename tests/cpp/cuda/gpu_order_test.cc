// What GPUs and hosts tell each other in modes S, L and K, over memory that is as weak as C++
// allows: each protocol holds with the orders that it has, and with any of these weakened there is
// an execution that shows it.
#include "model/gpu_weak_programs.h"
#include "support/check.h"

using namespace horoacc::model;

namespace {

using Of = Weakening::Of;

constexpr const char* kReads = "reads what another thread writes";

/// Each of these is needed: on its loads and on its stores.
template <typename Program>
void CheckOrders(std::initializer_list<uint32_t> counts) {
  Holds(WeakModel<Program>(Program{}));
  for (const uint32_t count : counts) {
    IsCaught(WeakModel<Program>(Program{}, {Of::kStores, count}), kReads);
    IsCaught(WeakModel<Program>(Program{}, {Of::kLoads, count}), kReads);
  }
}

}  // namespace

TEST(words_of_streams) {
  using Two = StreamProgram<2, 3>;
  CheckOrders<Two>({Two::kPacked + Two::At(0, 1, 1), Two::kPacked + Two::At(0, 0, 1),
                    Two::kReduced + Two::At(0, 1, 1), Two::kEnded});
  using Three = StreamProgram<3, 1>;
  CheckOrders<Three>({Three::kPacked + Three::At(2, 0, 1), Three::kReduced + Three::At(1, 2, 1)});
}

TEST(launches_events_and_counts_of_a_leader) {
  using P = LeaderProgram<1>;
  CheckOrders<P>({P::kLaunched, P::kLaunched + 1, P::kLaunched + 2, P::kEnded, P::kEnded + 1,
                  P::kEnded + 2, P::kPacked + 1, P::kReduced});
  Holds(WeakModel<LeaderProgram<2>>(LeaderProgram<2>{}));
}

TEST(counts_and_barriers_of_blocks) {
  using P = DirectProgram;
  CheckOrders<P>({P::CellOf(0, 1, 0), P::CellOf(1, 0, 1)});
  IsCaught(WeakModel<P>(P{}, {Of::kModifications, P::kBarrier}), kReads);
  IsCaught(WeakModel<P>(P{}, {Of::kLoads, P::kBarrier}), kReads);
}
