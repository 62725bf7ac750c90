#pragma once
// Runs one window of a schedule on the forms of its values alone: finds in which form every chunk
// lies when a step reads it, which message of its link every step sends and takes, and whether all
// lanes end. Lanes and links are a Kahn network, so every order of running has the same result.
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "base/result.h"
#include "execute/cuda/persistent/kernel_program.h"
#include "schedule/schedule.h"

namespace horoacc::cuda {

/// The forms that the values of a reduction have on their way.
struct TraceRules {
  bool reduces = true;
  bool apart = false;   ///< unfinished sums do not fit into the output
  bool scales = false;  ///< the factor before the sum is not 1
};

struct TracedLink {
  uint32_t from = 0, to = 0;
  uint32_t tail = 0, head = 0;  ///< cells: among those that `to` receives on, that `from` sends on
  uint32_t slot = 0;            ///< among the links of `to` that need slots
  uint32_t sent = 0, taken = 0;
  uint32_t longest = 0;  ///< chunks of the longest message in a slot; 0: it needs none
};

/// `end.peer` is set first; NumberCells sets the other numbers.
struct TracedStep {
  KernelStep step;
  struct End {
    uint32_t link = 0;
    KernelEnd end;
  };
  std::vector<End> sources, targets;
};

class KernelTrace {
 public:
  /// kInvalid if the schedule does not end, or a link is left with messages.
  static Result<KernelTrace> Of(const schedule::Schedule& schedule, const TraceRules& rules);

  /// By rank · lanes + lane.
  [[nodiscard]] const std::vector<std::vector<TracedStep>>& lanes() const { return lanes_; }
  [[nodiscard]] const std::vector<TracedLink>& links() const { return links_; }

 private:
  struct Message {
    Memory memory = Memory::kSlot;
    uint32_t chunk = 0;
    uint32_t ordinal = 0;
  };
  KernelTrace(const schedule::Schedule& schedule, const TraceRules& rules)
      : schedule_(schedule), rules_(rules) {}

  void Expand();
  Status Run();
  [[nodiscard]] bool MayRun(uint32_t rank, uint32_t lane, const schedule::Step& step);
  void RunStep(uint32_t rank, uint32_t lane, const schedule::Step& step);
  void ChooseForms(uint32_t rank, const schedule::Step& step, KernelStep& out);
  void Connect(uint32_t rank, const schedule::Step& step, TracedStep& out);
  void NumberCells();
  uint32_t LinkOf(uint32_t from, uint32_t to, uint8_t channel);

  const schedule::Schedule& schedule_;
  const TraceRules rules_;
  std::vector<std::vector<schedule::Step>> steps_;  ///< by rank · lanes + lane
  std::vector<size_t> next_;
  std::map<std::vector<uint32_t>, uint32_t> link_of_;
  std::vector<std::deque<Message>> queues_;
  std::map<std::pair<uint32_t, uint32_t>, bool> finished_;  ///< by rank and chunk of the output
  std::vector<std::vector<TracedStep>> lanes_;
  std::vector<TracedLink> links_;
};

}  // namespace horoacc::cuda
