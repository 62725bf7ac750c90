#include "transport/bootstrap/bootstrap.h"

#include <cstring>
#include <optional>
#include <utility>

#include "transport/bootstrap/gather_wire.h"
#include "transport/net/handshake.h"

namespace horoacc {
namespace {

constexpr char kGood = '+';
constexpr char kBad = '!';

Result<std::string> Draw(Bootstrap& bootstrap, size_t count, int64_t deadline_ns) {
  std::string own;
  if (bootstrap.rank() == 0) {
    HA_ASSIGN(own, RandomBytes(count));
  }
  HA_ASSIGN(std::string drawn, bootstrap.Broadcast(own, deadline_ns));
  if (drawn.size() != count) {
    return MakeError(ErrorKind::kSystem, "rank 0 drew no number for this job", 0);
  }
  return drawn;
}

// The error of the first rank whose step failed, for all ranks.
std::optional<Error> FailedStep(const std::vector<std::string>& blobs, const std::string& task) {
  for (size_t rank = 0; rank < blobs.size(); ++rank) {
    if (blobs[rank].starts_with(kGood)) continue;
    Error error = UnpackError(BytesOf(blobs[rank]).subspan(blobs[rank].empty() ? 0 : 1));
    error.kind = ErrorKind::kConfig;
    if (error.culprit < 0) error.culprit = static_cast<int>(rank);
    return std::move(error).Within("rank " + std::to_string(rank) + task);
  }
  return std::nullopt;
}

}  // namespace

Result<std::string> Bootstrap::Exchange(const Result<std::string>& own, const std::string& task,
                                        const Answers& answers, int64_t deadline_ns) {
  const auto raw = [&](std::vector<std::string> blobs) {
    const auto refuse = [&](const Error& error) {
      return std::vector<std::string>(blobs.size(), kBad + PackError(error));
    };
    if (const std::optional<Error> failed = FailedStep(blobs, task)) return refuse(*failed);
    for (std::string& blob : blobs) blob.erase(0, 1);
    auto made = answers(blobs);
    if (!made.ok()) return refuse(made.error());
    for (std::string& answer : made.value()) answer.insert(answer.begin(), kGood);
    return std::move(made).value();
  };
  const std::string blob = own.ok() ? kGood + own.value() : kBad + PackError(own.error());
  HA_ASSIGN(std::string answer, Round(blob, raw, deadline_ns));
  if (!answer.starts_with(kGood))
    return UnpackError(BytesOf(answer).subspan(answer.empty() ? 0 : 1));
  answer.erase(0, 1);
  return answer;
}

Result<std::vector<std::string>> Bootstrap::AllGather(const Result<std::string>& own,
                                                      const std::string& task,
                                                      int64_t deadline_ns) {
  const auto all = [](const std::vector<std::string>& blobs) -> Result<std::vector<std::string>> {
    return std::vector<std::string>(blobs.size(), PackTable(blobs));
  };
  HA_ASSIGN(const std::string table, Exchange(own, task, all, deadline_ns));
  return UnpackTable(BytesOf(table), size());
}

Result<std::string> Bootstrap::Broadcast(const std::string& blob, int64_t deadline_ns) {
  const auto first = [](const std::vector<std::string>& blobs) -> Result<std::vector<std::string>> {
    return std::vector<std::string>(blobs.size(), blobs[0]);
  };
  return Exchange(rank() == 0 ? blob : std::string(), "", first, deadline_ns);
}

Status Bootstrap::Barrier(const Status& own, const std::string& task, int64_t deadline_ns) {
  const auto none = [](const std::vector<std::string>& blobs) -> Result<std::vector<std::string>> {
    return std::vector<std::string>(blobs.size());
  };
  const Result<std::string> step =
      own.ok() ? Result<std::string>(std::string()) : Result<std::string>(own.error());
  HA_TRY(Exchange(step, task, none, deadline_ns));
  return {};
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
