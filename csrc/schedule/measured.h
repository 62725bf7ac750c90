#pragma once
// The seconds that algorithms took on this job's hosts, as `horoaccrun tune` measured them.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "schedule/topology.h"

namespace horoacc::schedule {

class MeasuredTable {
 public:
  MeasuredTable() = default;
  /// Rows "algorithm@ranks,ranks:bytes=seconds" with ';' between them: the ranks of each host, in
  /// order. Modes of GPUs are `gpu_...`, with the ranks of each GPU. Empty: nothing was measured.
  /// kInvalid names a malformed row.
  static Result<MeasuredTable> Parse(std::string_view text);

  struct Point {
    uint64_t bytes;
    double seconds;
  };
  /// Points by ascending size; empty if there is no measurement on hosts like these.
  [[nodiscard]] const std::vector<Point>& Of(std::string_view algorithm,
                                             const Topology& topology) const;
  [[nodiscard]] const std::vector<Point>& Of(std::string_view name,
                                             const std::vector<uint32_t>& ranks) const;

  /// Whether there is a measurement under this name, on any hosts.
  [[nodiscard]] bool Has(std::string_view name) const;

 private:
  using Key = std::pair<std::string, std::vector<uint32_t>>;
  std::map<Key, std::vector<Point>> points_;
};

}  // namespace horoacc::schedule
