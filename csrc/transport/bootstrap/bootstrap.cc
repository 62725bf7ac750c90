#include "transport/bootstrap/bootstrap.h"

#include <cstring>
#include <utility>

#include "transport/bootstrap/gather_wire.h"
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

Result<std::vector<std::string>> GatherOrFail(Bootstrap& bootstrap, const Result<std::string>& own,
                                              const std::string& task, int64_t deadline_ns) {
  constexpr char kGood = '+';
  const std::string blob = own.ok() ? kGood + own.value() : '!' + PackError(own.error());
  HA_ASSIGN(std::vector<std::string> blobs, bootstrap.AllGather(blob, deadline_ns));
  for (int rank = 0; rank < bootstrap.size(); ++rank) {
    const bool good = blobs[rank].starts_with(kGood);
    blobs[rank].erase(0, 1);
    if (good) continue;
    Error error = UnpackError(BytesOf(blobs[rank]));
    error.kind = ErrorKind::kConfig;
    if (error.culprit < 0) error.culprit = rank;
    return std::move(error).Within("rank " + std::to_string(rank) + task);
  }
  return blobs;
}

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
