#pragma once
// Groups: process sets of which only their members know.
#include <mutex>
#include <vector>

#include "runtime/sets/set_table.h"

namespace horoacc {

/// One member claims a number and tells it to the others, which join; there is no collective, and
/// no other rank takes part. Any thread.
class Groups {
 public:
  Groups(Job& job, SetTable& sets) : job_(job), sets_(sets) {}

  Result<uint32_t> Claim(const std::vector<int>& ranks);
  Status Join(uint32_t id, const std::vector<int>& ranks);
  /// What is undecided ends with an error here and on the other members. Unknown: does nothing.
  Status Leave(uint32_t id);

 private:
  Status Add(uint32_t id, const std::vector<int>& ranks);
  /// The group's place on this host's control segment; the first local member claims it.
  [[nodiscard]] Result<uint32_t> PlaceOf(uint32_t id, const std::vector<int>& ranks);
  [[nodiscard]] Status Check(const std::vector<int>& ranks) const;

  Job& job_;
  SetTable& sets_;
  std::mutex mutex_;  ///< one group is added at a time
  uint32_t claims_ = 0;
};

}  // namespace horoacc
