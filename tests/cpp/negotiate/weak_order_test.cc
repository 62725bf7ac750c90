// What the core does with atomics, over memory that is as weak as C++ allows: each pattern holds
// with the orders that it has, and with any of these weakened there is an execution that shows it.
#include "model/weak_programs.h"
#include "support/check.h"

using namespace horoacc::model;

namespace {

using Of = Weakening::Of;

/// An order that is needed, and what happens without it.
struct Needed {
  Weakening without;
  const char* then;
};

template <typename Program>
void CheckOrders(std::initializer_list<Needed> needed) {
  Holds(WeakModel<Program>(Program{}));
  for (const Needed& each : needed)
    IsCaught(WeakModel<Program>(Program{}, each.without), each.then);
}

constexpr const char* kReads = "reads what another thread writes";
constexpr const char* kWrites = "writes what another thread uses";

}  // namespace

TEST(rings) {
  using P = RingProgram;
  CheckOrders<P>({{{Of::kStores, P::kWritten}, kReads},
                  {{Of::kLoads, P::kWritten}, kReads},
                  {{Of::kStores, P::kRead}, kWrites},
                  {{Of::kLoads, P::kRead}, kWrites}});
}

TEST(claimed_slices) {
  using P = SliceProgram;
  CheckOrders<P>({{{Of::kStores, 0}, kReads},
                  {{Of::kLoads, 0}, kReads},
                  {{Of::kModifications, P::kDone}, kReads},
                  {{Of::kLoads, P::kDone}, kReads}});
}

TEST(arrivals_and_decisions) {
  using P = ArrivalProgram;
  CheckOrders<P>({{{Of::kModifications, P::kArrivals}, kReads},
                  {{Of::kModifications, P::kArrivals, kAcquire}, kReads},
                  {{Of::kModifications, P::kArrivals, kRelease}, kReads},
                  {{Of::kStores, P::kLogWords}, kReads},
                  {{Of::kLoads, P::kLogWords}, kReads}});
}

TEST(both_write_and_then_look) {
  using P = BothLookProgram;
  constexpr const char* kMissed = "neither sees the other";
  CheckOrders<P>({{{Of::kStores, P::kStored, kRelease}, kMissed},
                  {{Of::kLoads, P::kModified, kAcquire}, kMissed},
                  {{Of::kModifications, P::kModified, kAcqRel}, kMissed},
                  {{Of::kLoads, P::kStored, kAcquire}, kMissed}});
}

TEST(mail) {
  using P = MailProgram;
  CheckOrders<P>({{{Of::kModifications, P::kMail}, kReads},
                  {{Of::kModifications, P::kMail, kAcquire}, kReads},
                  {{Of::kModifications, P::kMail, kRelease}, kReads}});
}

TEST(slots_of_the_flight_ring) {
  using P = FlightProgram;
  constexpr const char* kTorn = "keeps what is torn";
  CheckOrders<P>({{{Of::kStores, P::kFirst}, kTorn},
                  {{Of::kLoads, P::kFirst}, kTorn},
                  {{Of::kStores, P::kNumber}, kTorn},
                  {{Of::kLoads, P::kNumber}, kTorn}});
}

TEST(locks) {
  CheckOrders<LockProgram>({{{Of::kModifications, 0}, kReads}, {{Of::kStores, 0}, kReads}});
}

TEST(doorbells) {
  using P = BellProgram;
  constexpr const char* kForEver = "somebody waits for ever";
  CheckOrders<P>({{{Of::kModifications, P::kWord, kAcqRel}, kForEver},
                  {{Of::kLoads, P::kWord, kAcquire}, kForEver},
                  {{Of::kStores, P::kAnnounced, kRelease}, kForEver},
                  {{Of::kLoads, P::kAnnounced, kAcquire}, kForEver}});
}
