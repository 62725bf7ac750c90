// Requests, decisions and news of calls, as they are read from messages of other hosts.
#include <array>

#include "fuzz/input.h"
#include "negotiate/multi_host/multi_host_messages.h"
#include "support/check.h"

using namespace horoacc;

namespace {

template <typename T, typename... Known>
std::vector<std::byte> Written(const T& value, const Known&... known) {
  WireWriter writer;
  if constexpr (sizeof...(Known) == 0) {
    writer.Put(value);
  } else {
    Put(writer, value, known...);
  }
  return {writer.bytes().begin(), writer.bytes().end()};
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const uint32_t kind = input.Choose(6);
  const std::span<const std::byte> rest = input.Rest();
  const std::vector<std::byte> bytes(rest.begin(), rest.end());
  WireReader reader(bytes);
  const CallNumbers numbers;
  if (kind == 0) {
    const Request request = reader.GetRequest();
    CHECK(static_cast<int>(request.collective) < kCollectiveCount);
    CHECK(static_cast<int>(request.op) < kReduceOpCount);
    for (const TensorMeta& tensor : request.tensors)
      CHECK(static_cast<int>(tensor.type) < kDTypeCount);
    if (reader.ok() && reader.at_end()) CHECK(Written(request) == bytes);
  } else if (kind == 1) {
    const MultiHostDecision read = GetMultiHostDecision(reader, numbers);
    if (!reader.ok()) return 0;
    CHECK(static_cast<int>(read.decision.path) < kPathCount);
    CHECK(IsErrorKind(static_cast<int>(read.decision.error.kind)));
    const bool runs = read.decision.kind == Decision::Kind::kRun;
    CHECK_EQ(read.decision.facts.size(), runs ? read.calls.size() : 0);
  } else if (kind == 2) {
    const std::array<uint32_t, 3> subtree{1, 3, 70};
    (void)GetReady(reader, subtree, numbers);
  } else if (kind == 3) {
    (void)GetAttendance(reader);
    (void)GetBuckets(reader);
  } else if (kind == 4) {
    Decision decision;
    (void)TakeNote(bytes, decision);
    (void)TakeNews(bytes);
  } else {
    (void)GetError(reader);
    (void)GetCallName(reader, &numbers);
    (void)reader.GetBlock();
  }
  return 0;
}
