#pragma once
// The requests that tagged links have at their carrier, and whether it still works.
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "transport/data/data_links.h"
#include "transport/data/tagged/tagged_links.h"

namespace horoacc {

class TaggedRequests {
 public:
  explicit TaggedRequests(TaggedCarrier carrier) : carrier_(std::move(carrier)) {}

  [[nodiscard]] const TaggedCarrier& carrier() const { return carrier_; }
  [[nodiscard]] DataCounters& counters() { return counters_; }
  [[nodiscard]] const DataCounters& counters() const { return counters_; }
  /// The error that ended the links.
  [[nodiscard]] const std::optional<Error>& failed() const { return failed_; }
  void Fail(const Error& error) { failed_ = error; }
  [[nodiscard]] Status Health() const { return failed_ ? Status(*failed_) : Status(); }

  [[nodiscard]] Result<void*> Start(bool send, int peer, uint32_t tag,
                                    std::span<const ha_piece> pieces);
  /// The length of what was received once the request is done.
  [[nodiscard]] Result<std::optional<uint64_t>> Test(void* request, int peer);
  void Cancel(void* request) {
    if (request != nullptr) carrier_.calls.cancel(carrier_.self, request);
  }
  /// A message that the carrier still sends although its link is closed.
  void Adopt(int peer, void* request) { orphans_.emplace_back(peer, request); }
  /// Lets go of those that were sent.
  [[nodiscard]] Status TestOrphans();

 private:
  [[nodiscard]] static Error Lost(int peer, const ha_transport_error& error);

  TaggedCarrier carrier_;
  std::vector<std::pair<int, void*>> orphans_;
  DataCounters counters_;
  std::optional<Error> failed_;
};

}  // namespace horoacc
