#include "transport/data/tagged/tagged_requests.h"

#include <string>

namespace horoacc {

Error TaggedRequests::Lost(int peer, const ha_transport_error& error) {
  return MakeError(ErrorKind::kPeerLost,
                   "lost the data links to rank " + std::to_string(peer) + ": " + error.message,
                   peer);
}

Result<void*> TaggedRequests::Start(bool send, int peer, uint32_t tag,
                                    std::span<const ha_piece> pieces) {
  ha_transport_error error = {};
  void* request = nullptr;
  const auto call = send ? carrier_.calls.send : carrier_.calls.receive;
  if (call(carrier_.self, peer, tag, pieces.data(), pieces.size(), &request, &error) == 0) {
    return request;
  }
  return Lost(peer, error);
}

Result<std::optional<uint64_t>> TaggedRequests::Test(void* request, int peer) {
  ha_transport_error error = {};
  int done = 0;
  size_t bytes = 0;
  if (carrier_.calls.test(carrier_.self, request, &done, &bytes, &error) != 0) {
    return Lost(peer, error);
  }
  return done != 0 ? std::optional<uint64_t>(bytes) : std::nullopt;
}

Status TaggedRequests::TestOrphans() {
  for (size_t index = 0; index < orphans_.size();) {
    const auto [rank, request] = orphans_[index];
    HA_ASSIGN(const auto done, Test(request, rank));
    if (!done) {
      ++index;
    } else {
      orphans_.erase(orphans_.begin() + static_cast<std::ptrdiff_t>(index));
    }
  }
  return {};
}

}  // namespace horoacc
