// A user's output gets results and nothing else: where a job ends in the middle of a reduction
// between hosts, every element is what it was before the call, or its result.
#include <atomic>
#include <chrono>
#include <latch>
#include <vector>

#include "support/ranks.h"

namespace horoacc::testing {
namespace {

constexpr int kRanks = 4;
constexpr int64_t kCount = 160'001;  // not a multiple of anything
constexpr float kOld = -1;           // of an output that is not the input

struct Reduction {
  Collective collective = Collective::kAllreduce;
  Pairs settings;
  bool in_arena = false;
  bool in_place = false;
};

// Every sum of some of the ranks' inputs is another number, and none is rounded.
float InputOf(int rank, int64_t k) {
  return static_cast<float>((1 << (3 * rank)) * (1 + (k % 5) + 8192));
}

float SumAt(int64_t k) {
  float sum = 0;
  for (int rank = 0; rank < kRanks; ++rank) sum += InputOf(rank, k);
  return sum;
}

/// Elements of all ranks' outputs, after the job has ended.
struct Found {
  std::atomic<uint64_t> old{0}, results{0}, others{0};
};

// The last rank fails when it has come back to the reduction that many times.
void EndIn(const Reduction& what, int passes, Found& found) {
  const Pairs settings =
      With(what.settings, {{"simulated_hosts", "2+2"},
                           {"log_level", "fatal"},
                           {"window_bytes", "4096"},
                           {"fault", "advance:3:" + std::to_string(passes) + ":error"}});
  std::latch ended(kRanks);
  RunRanks(kRanks, settings, [&](Engine& engine, int rank) {
    std::vector<float> own(2 * kCount);
    float* const memory =
        what.in_arena ? static_cast<float*>(engine.AllocateShared(own.size() * sizeof(float)))
                      : own.data();
    float* const input = memory;
    float* output = what.in_place ? input : memory + kCount;
    for (int64_t k = 0; k < kCount; ++k) {
      output[k] = kOld;
      input[k] = InputOf(rank, k);
    }
    int64_t first = 0;
    int64_t count = kCount;
    if (what.collective == Collective::kReducescatter) {
      first = rank == 0 ? 0 : 1 + kCount / kRanks * rank;
      count = kCount / kRanks + (rank == 0 ? 1 : 0);
      if (what.in_place) output += first;
    }
    Submission submission = Make(what.collective, "sums", DType::kFloat32, {kCount}, input, output);
    submission.request.root = 1;
    auto handle = engine.Submit(std::move(submission));
    CHECK(handle.ok());
    const Status outcome = WaitAndRelease(engine, handle.value());
    // From here on no rank goes on with it.
    ended.arrive_and_wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    for (int64_t k = 0; k < count; ++k) {
      const float before = what.in_place ? InputOf(rank, first + k) : kOld;
      if (output[k] == before) {
        ++found.old;
      } else if (output[k] == SumAt(first + k)) {
        ++found.results;
      } else {
        ++found.others;
      }
    }
    if (outcome.ok() && (what.collective != Collective::kReduce || rank == 1))
      CHECK(output[count - 1] == SumAt(first + count - 1));
    if (what.in_arena) engine.FreeShared(memory);
  });
}

void CheckOutputs(const Reduction& what) {
  bool halfway = false;
  for (const int passes : {2, 5, 10, 20, 40, 80, 160}) {
    Found found;
    EndIn(what, passes, found);
    if (found.others > 0) {
      std::string text = std::to_string(found.others) + " elements are unfinished sums";
      for (const auto& [key, value] : what.settings) text += " " + key + "=" + value;
      check::Fail(__FILE__, __LINE__, text + (what.in_place ? ", in place" : ""));
    }
    halfway |= found.old > 0 && found.results > 0;
  }
  CHECK(halfway);  // otherwise nothing was shown
}

TEST(allreduces_that_are_composed) {
  for (const bool in_arena : {true, false}) {
    for (const bool in_place : {true, false}) {
      CheckOutputs({Collective::kAllreduce, {{"reduction", "canonical"}}, in_arena, in_place});
    }
  }
}

TEST(flat_allreduces) {
  for (const char* algorithm :
       {"ring", "trees", "hierarchical", "hierarchical_tree", "cpu_reduce", "canonical"}) {
    for (const bool in_place : {true, false}) {
      CheckOutputs({Collective::kAllreduce, {{"algorithm", algorithm}}, false, in_place});
    }
  }
}

TEST(reduces_and_reducescatters) {
  for (const char* algorithm : {"chain_reduce", "tree_reduce", "canonical_reduce"})
    CheckOutputs({Collective::kReduce, {{"algorithm", algorithm}}, false, false});
  for (const char* algorithm :
       {"ring_reduce_scatter", "log_reduce_scatter", "canonical_reduce_scatter"})
    CheckOutputs({Collective::kReducescatter, {{"algorithm", algorithm}}, false, false});
}

}  // namespace
}  // namespace horoacc::testing
