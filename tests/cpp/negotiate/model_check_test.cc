// Explicit-state model checks of what ranks do through shared memory: all interleavings of the link
// protocol, of doorbells with their two sleepers, of a lock whose owner may die, of window rings,
// and of the control segment with last arrivers and with slices; and of the messages over the tree
// between hosts. At 2 and 3 ranks. Careless variants of each are caught, so the models can see what
// they look for.
#include "model/doorbell_model.h"
#include "model/link_model.h"
#include "model/lock_model.h"
#include "model/quarantine_model.h"
#include "model/segment_model.h"
#include "model/tree_model.h"
#include "model/window_model.h"
#include "support/check.h"

using namespace horoacc::model;

namespace {

template <uint32_t kRanks>
void CheckSegment(bool last_arriver, uint8_t tensors, uint8_t generations) {
  const SegmentShape shape{last_arriver, tensors, generations};
  Holds(SegmentModel<kRanks>(shape, SegmentFault::kNone));
}

}  // namespace

TEST(a_link) {
  for (const uint8_t depth : {1, 2}) Holds(LinkModel(depth, 4, LinkFault::kNone));
}

TEST(careless_links_are_caught) {
  for (const LinkFault fault :
       {LinkFault::kMissingCredit, LinkFault::kEarlyPost, LinkFault::kEarlyRelease}) {
    for (const uint8_t depth : {1, 2})
      IsCaught(LinkModel(depth, 4, fault), "reads another message");
  }
}

TEST(a_doorbell_with_two_sleepers) {
  for (const bool links : {false, true}) Holds(DoorbellModel(links, 2, 1, BellFault::kNone));
  Holds(DoorbellModel(false, 2, 2, BellFault::kNone));
}

TEST(careless_sleepers_are_caught) {
  for (const BellFault fault :
       {BellFault::kDeafSleep, BellFault::kSleepOnCount, BellFault::kBufferedStore,
        BellFault::kQuietWork, BellFault::kSilentLeave}) {
    for (const bool links : {false, true})
      IsCaught(DoorbellModel(links, 2, 1, fault), "somebody waits for ever");
  }
}

TEST(a_lock_whose_owner_may_die_stop_or_throw) {
  Holds(LockModel<2>(2, 2, LockFault::kNone));
  Holds(LockModel<3>(1, 3, LockFault::kNone));
}

TEST(careless_locks_are_caught) {
  const auto caught = [](LockFault fault, const char* how) {
    IsCaught(LockModel<2>(1, 1, fault), how);
  };
  caught(LockFault::kDeafToDeath, "somebody waits for ever");
  caught(LockFault::kDeafToSilence, "somebody waits for ever");
  caught(LockFault::kOneLook, "blames a rank that has left in order");
  caught(LockFault::kGivesBack, "goes on with what is half changed");
}

TEST(blocks_that_are_freed_after_an_abort) {
  Holds(QuarantineModel<1>(3, QuarantineFault::kNone));
  Holds(QuarantineModel<2>(1, QuarantineFault::kNone));
}

TEST(careless_quarantines_are_caught) {
  for (const QuarantineFault fault :
       {QuarantineFault::kFreesAtOnce, QuarantineFault::kNotesFirst,
        QuarantineFault::kPassesNoQueue, QuarantineFault::kDeafSubmitter,
        QuarantineFault::kStoppedIsDead, QuarantineFault::kOpenEnd})
    IsCaught(QuarantineModel<1>(2, fault), "writes into another tensor");
}

TEST(window_rings) {
  for (const uint8_t depth : {1, 2}) {
    Holds(WindowModel<2>(depth, 4, WindowFault::kNone));
    Holds(WindowModel<3>(depth, 3, WindowFault::kNone));
  }
}

TEST(careless_window_rings_are_caught) {
  for (const WindowFault fault :
       {WindowFault::kMissingCredit, WindowFault::kOwnCreditOnly, WindowFault::kEarlyExpose,
        WindowFault::kEarlyConsume, WindowFault::kOneExposed}) {
    for (const uint8_t depth : {1, 2}) {
      IsCaught(WindowModel<2>(depth, 4, fault), "reads another window");
      IsCaught(WindowModel<3>(depth, 3, fault), "reads another window");
    }
  }
}

TEST(last_arrivers_on_the_control_segment) {
  CheckSegment<2>(true, 1, 4);
  CheckSegment<2>(true, 2, 3);
  CheckSegment<3>(true, 1, 3);
  CheckSegment<3>(true, 2, 1);
}

TEST(slices_on_the_control_segment) {
  CheckSegment<2>(false, 1, 4);
  CheckSegment<2>(false, 2, 3);
  CheckSegment<3>(false, 1, 3);
  CheckSegment<3>(false, 2, 1);
}

TEST(careless_control_segments_are_caught) {
  const SegmentShape alone{true, 1, 3};
  const SegmentShape two{true, 2, 2};
  const SegmentShape sliced{false, 2, 2};
  const auto caught = [](SegmentShape shape, SegmentFault fault, const char* how) {
    IsCaught(SegmentModel<2>(shape, fault), how);
  };
  caught(alone, SegmentFault::kOneRow, "reads a row of another generation");
  caught(alone, SegmentFault::kEarlyArrival, "reads a row of another generation");
  caught(alone, SegmentFault::kPlainCount, "somebody waits for ever");
  caught(alone, SegmentFault::kEarlyEnd, "takes a decision that is not the next one");
  caught(alone, SegmentFault::kLateSum, "completes without the whole result");
  caught(two, SegmentFault::kNoLock, "two ranks decide at once");
  caught(two, SegmentFault::kFullLog, "takes a decision that is not the next one");
  caught(two, SegmentFault::kForgottenBacklog, "somebody waits for ever");
  caught(sliced, SegmentFault::kEarlyFinish, "reduces the input of another generation");
}

TEST(news_and_decisions_between_hosts) {
  for (const bool waits : {false, true}) {
    Holds(TreeModel<2>({{0, 0}, 2, 2, waits}, TreeFault::kNone));
    for (const uint8_t parent : {0, 1}) {  // of the last rank: a host of its own, or one of two
      Holds(TreeModel<3>({{0, 0, parent}, 2, 0, waits}, TreeFault::kNone));
      Holds(TreeModel<3>({{0, 0, parent}, 1, 1, waits}, TreeFault::kNone));
    }
  }
  Holds(TreeModel<3>({{0, 0, 1}, 2, 1, true}, TreeFault::kNone));
}

TEST(careless_trees_are_caught) {
  const auto caught = [](TreeModel<3>::Shape shape, TreeFault fault, const char* how) {
    IsCaught(TreeModel<3>(shape, fault), how);
  };
  const TreeModel<3>::Shape once{{0, 0, 1}, 1, 1, false};
  const TreeModel<3>::Shape twice{{0, 0, 1}, 2, 0, true};
  caught(once, TreeFault::kLateNews, "runs what was not submitted");
  caught(once, TreeFault::kLateNewsBelow, "a call is told of twice");
  caught(once, TreeFault::kKeptNews, "a call is told of twice");
  caught(once, TreeFault::kEarlyDecision, "runs what was not submitted");
  caught(twice, TreeFault::kNobodySplits, "somebody waits for ever");
  caught(twice, TreeFault::kOneSplit, "somebody waits for ever");
}
