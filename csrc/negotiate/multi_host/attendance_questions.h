#pragma once
// How a leader asks the root which ranks have submitted a call or have joined.
#include <map>
#include <optional>
#include <vector>

#include "negotiate/multi_host/host_log.h"
#include "negotiate/multi_host/multi_host_root.h"
#include "negotiate/multi_host/tree_links.h"

namespace horoacc {

/// Questions go up to the root, each subject once at a time; the answer comes back to all that
/// asked.
class AttendanceQuestions {
 public:
  /// A call, or the join.
  using Subject = std::optional<CallName>;
  /// `root`: none: another host has it. All outlive it.
  AttendanceQuestions(TreeLinks& links, HostLog& log, const std::optional<MultiHostRoot>& root)
      : links_(links), log_(log), root_(root) {}

  /// A rank of this host asks; `key`: of the call.
  Status Ask(const Subject& subject, std::optional<TensorKey> key);
  // Messages of kind kWhoHas.
  Status FromBelow(WireReader& reader, uint32_t child);
  Status FromAbove(WireReader& reader);

 private:
  /// Leaders below that have asked about one subject, and ranks of this host.
  struct Askers {
    std::vector<uint32_t> children;
    std::vector<std::optional<TensorKey>> own;
  };
  /// The answer that is on its way may be of a time before the later ones asked.
  struct Asked {
    Askers now, later;
    bool again = false;  ///< there are later ones
  };
  /// `add`: puts the one that asks where it belongs.
  template <typename Add>
  Status AskRoot(const Subject& subject, Add add);
  Status Answer(const Subject& subject, const std::optional<Attendance>& attendance);

  TreeLinks& links_;
  HostLog& log_;
  const std::optional<MultiHostRoot>& root_;
  std::map<Subject, Asked> asked_;
};

}  // namespace horoacc
