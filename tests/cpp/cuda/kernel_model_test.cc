// Explicit-state model checks of persistent kernels: all interleavings, at 2 and 3 ranks, of links
// with slots and credits, of words that carry their flag, and of a rank's death and the abort word.
// Careless variants of each are caught, so the models can find such mistakes.
#include "model/kernel_model.h"

#include "model/low_latency_model.h"
#include "support/check.h"

using namespace horoacc::model;

namespace {

constexpr char kStuck[] = "somebody waits for ever";
constexpr char kWrongMessage[] = "reads another message";

}  // namespace

TEST(links_of_kernels) {
  for (const uint8_t depth : {2, 3}) {
    for (const bool dies : {false, true}) {
      Holds(KernelModel<2>(depth, 5, dies, KernelFault::kNone));
      Holds(KernelModel<3>(depth, 4, dies, KernelFault::kNone));
    }
  }
}

TEST(careless_links_of_kernels_are_caught) {
  for (const uint8_t depth : {2, 3}) {
    for (const KernelFault fault : {KernelFault::kMissingCredit, KernelFault::kFlagFirst,
                                    KernelFault::kEarlyRelease, KernelFault::kReusedSlot}) {
      IsCaught(KernelModel<2>(depth, 5, false, fault), kWrongMessage);
      IsCaught(KernelModel<3>(depth, 5, false, fault), kWrongMessage);
    }
    IsCaught(KernelModel<2>(depth, 5, true, KernelFault::kDeafToAbort), kStuck);
    IsCaught(KernelModel<3>(depth, 5, true, KernelFault::kDeafToAbort), kStuck);
  }
}

TEST(low_latency_calls) {
  for (const bool dies : {false, true}) {
    Holds(LowLatencyModel<2>({false, 1, 4, dies}, WordFault::kNone));
    Holds(LowLatencyModel<3>({false, 1, 3, dies}, WordFault::kNone));
    Holds(LowLatencyModel<2>({true, 2, 4, dies}, WordFault::kNone));
    Holds(LowLatencyModel<2>({true, 1, 4, dies}, WordFault::kNone));
    Holds(LowLatencyModel<3>({true, 2, 3, dies}, WordFault::kNone));
  }
}

TEST(careless_low_latency_calls_are_caught) {
  const WordShape one{false, 1, 3, false};
  const WordShape two{true, 1, 3, false};
  for (const WordShape& shape : {one, two}) {
    IsCaught(LowLatencyModel<2>(shape, WordFault::kTornWord), kWrongMessage);
    IsCaught(LowLatencyModel<2>(shape, WordFault::kSameFlag), kWrongMessage);
  }
  IsCaught(LowLatencyModel<2>(one, WordFault::kOneSet), kStuck);
  IsCaught(LowLatencyModel<3>(one, WordFault::kOneSet), kStuck);
  IsCaught(LowLatencyModel<2>({false, 1, 2, true}, WordFault::kDeafToAbort), kStuck);
  IsCaught(LowLatencyModel<3>({true, 1, 2, true}, WordFault::kDeafToAbort), kStuck);
}
