#include "transport/bootstrap/epoch.h"

#include <cstring>
#include <vector>

#include "transport/net/handshake.h"

namespace horoacc {
namespace {

Result<std::string> Draw(Bootstrap& bootstrap, size_t count, int64_t deadline_ns) {
  std::string own;
  if (bootstrap.rank() == 0) {
    HA_ASSIGN(own, RandomBytes(count));
  }
  HA_ASSIGN(std::vector<std::string> drawn, bootstrap.AllGather(own, deadline_ns));
  if (drawn[0].size() != count) {
    return MakeError(ErrorKind::kSystem, "rank 0 drew no number for this job", 0);
  }
  return std::move(drawn[0]);
}

}  // namespace

Result<std::string> DrawSecret(Bootstrap& bootstrap, int64_t deadline_ns) {
  return Draw(bootstrap, 32, deadline_ns);
}

Result<uint64_t> DrawEpoch(Bootstrap& bootstrap, int64_t deadline_ns) {
  uint64_t epoch = 0;
  HA_ASSIGN(const std::string bytes, Draw(bootstrap, sizeof(epoch), deadline_ns));
  std::memcpy(&epoch, bytes.data(), sizeof(epoch));
  return epoch;
}

}  // namespace horoacc
