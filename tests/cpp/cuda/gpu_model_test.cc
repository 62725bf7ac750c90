// Explicit-state model checks of the modes in which hosts and streams wait for other ranks: the
// leader's counts and events, the words that streams wait for, and the tickets of process sets.
// Careless variants of each are caught, so the models can find such mistakes.
#include "model/leader_model.h"
#include "model/stream_model.h"
#include "model/ticket_model.h"
#include "support/check.h"

using namespace horoacc::model;

namespace {

constexpr char kStuck[] = "somebody waits for ever";
constexpr char kReducesTooMuch[] = "reduces what is not packed";
constexpr char kUnpacksTooMuch[] = "unpacks what is not reduced";

}  // namespace

TEST(words_of_streams) {
  Holds(StreamModel<2>(5, Death::kNever, StreamFault::kNone));
  Holds(StreamModel<2>(4, Death::kSometime, StreamFault::kNone));
  Holds(StreamModel<3>(2, Death::kNever, StreamFault::kNone));
  Holds(StreamModel<3>(1, Death::kSometime, StreamFault::kNone));
  Holds(StreamModel<3>(3, Death::kAtOnce, StreamFault::kNone));
}

TEST(careless_words_of_streams_are_caught) {
  const auto two = [](StreamFault fault) { return StreamModel<2>(3, Death::kNever, fault); };
  IsCaught(two(StreamFault::kReducesEarly), kReducesTooMuch);
  IsCaught(StreamModel<3>(1, Death::kNever, StreamFault::kReducesEarly), kReducesTooMuch);
  IsCaught(two(StreamFault::kUnpacksEarly), kUnpacksTooMuch);
  IsCaught(two(StreamFault::kTellsTooEarly), kUnpacksTooMuch);
  IsCaught(two(StreamFault::kPacksOver), kReducesTooMuch);
  IsCaught(StreamModel<2>(2, Death::kSometime, StreamFault::kDeafToAbort), kStuck);
  IsCaught(StreamModel<3>(1, Death::kSometime, StreamFault::kDeafToAbort), kStuck);
  // A stream that still runs writes over what a host has written for another one's later window.
  IsCaught(StreamModel<3>(2, Death::kAtOnce, StreamFault::kOneWord), kStuck);
}

TEST(counts_and_events_of_a_leader) {
  for (const bool dies : {false, true}) {
    Holds(LeaderModel<2>(5, dies, LeaderFault::kNone));
    Holds(LeaderModel<3>(dies ? 2 : 3, dies, LeaderFault::kNone));
  }
}

TEST(careless_leaders_are_caught) {
  IsCaught(LeaderModel<2>(2, false, LeaderFault::kPacksEarly), kReducesTooMuch);
  IsCaught(LeaderModel<3>(2, false, LeaderFault::kOneOfThem), kReducesTooMuch);
  IsCaught(LeaderModel<2>(2, false, LeaderFault::kTellsEarly), kUnpacksTooMuch);
  IsCaught(LeaderModel<2>(2, false, LeaderFault::kGoesOnEarly), kUnpacksTooMuch);
  IsCaught(LeaderModel<2>(3, false, LeaderFault::kPacksOver), kReducesTooMuch);
  IsCaught(LeaderModel<2>(2, false, LeaderFault::kLaunchesLater), kStuck);
  IsCaught(LeaderModel<3>(2, true, LeaderFault::kWaitsForDead), kStuck);
}

TEST(tickets_of_sets_that_share_a_hardware_queue) {
  Holds(TicketModel<BothSets>(1, TicketFault::kNone));
  Holds(TicketModel<BothSets>(3, TicketFault::kNone));
  Holds(TicketModel<OneShared>(2, TicketFault::kNone));
  Holds(TicketModel<ThreeInARing>(1, TicketFault::kNone));
}

// Why NCCL reduces across hosts for one set of a host at a time (ticket.h).
TEST(tickets_of_sets_across_hosts) {
  Holds(TicketModel<OneAcrossHosts>(1, TicketFault::kNone));
  Holds(TicketModel<OneBesideOneInside>(2, TicketFault::kNone));
  IsCaught(TicketModel<TwoAcrossHosts>(1, TicketFault::kNone), kStuck);
}

TEST(careless_tickets_are_caught) {
  IsCaught(TicketModel<BothSets>(1, TicketFault::kNoTickets), kStuck);
  IsCaught(TicketModel<ThreeInARing>(1, TicketFault::kNoTickets), kStuck);
  IsCaught(TicketModel<BothSets>(2, TicketFault::kEarlyRelease), kStuck);
  IsCaught(TicketModel<BothSets>(1, TicketFault::kLostTicket), kStuck);
  IsCaught(TicketModel<BothSets>(1, TicketFault::kSplitTickets), kStuck);
  IsCaught(TicketModel<ThreeInARing>(1, TicketFault::kSplitTickets), kStuck);
  IsCaught(TicketModel<BothSets>(1, TicketFault::kEarlyCall), kStuck);
}
