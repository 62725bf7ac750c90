// What ranks of other hosts, which have proved the secret, say of the job: departures, addresses,
// heartbeats, questions, silence and aborts, whenever they want. This rank does its own in between.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fuzz/input.h"
#include "runtime/sets/job_channel.h"
#include "support/check.h"

using namespace horoacc;

namespace {

class Wire final : public ControlLinks {
 public:
  Status Send(int peer, std::span<const std::byte> bytes) override {
    sent.emplace_back(bytes.begin(), bytes.end());
    CHECK(peer >= 0);
    return {};
  }
  Result<std::optional<ControlMessage>> Receive() override {
    return std::exchange(arriving, std::nullopt);
  }
  [[nodiscard]] std::vector<int> peers() const override { return {2, 4}; }
  [[nodiscard]] int WaitFd() const override { return -1; }
  [[nodiscard]] const char* kind() const override { return "fuzz"; }
  [[nodiscard]] uint64_t messages_sent() const override { return 0; }
  [[nodiscard]] uint64_t bytes_sent() const override { return 0; }

  std::optional<ControlMessage> arriving;
  std::vector<std::vector<std::byte>> sent;
};

struct alignas(64) Page {
  std::byte bytes[64] = {};
};

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const std::vector<int> host_of{0, 0, 2, 2, 4, 5, 5};  // by rank
  const int ranks = static_cast<int>(host_of.size());
  const int rank = static_cast<int>(input.Choose(2));  // of the first host
  const auto memory = std::make_unique<Page[]>(RankDirectory::BytesFor(host_of.size()) / 64 + 1);
  const RankDirectory directory(memory[0].bytes, host_of.size());
  RankAddresses address;
  address.control = ResolveAddress("127.0.0.1:9").value().front();
  for (const int known : {0, 1, 2, 4}) directory.Put(known, address);
  Wire wire;
  ControlMux mux(wire, [](int) { return true; });
  JobChannel channel(host_of,
                     JobChannel::Surroundings{
                         .rank = rank,
                         .locals = {0, 1},
                         .mux = &mux,
                         .directory = &directory,
                         .aborted = [](const Error& error) { CHECK(error.kind != ErrorKind::kOk); },
                         .stack = [] { return "stack"; },
                         .reading = [](const ReadingScope&) { return "reading"; },
                         .ring_host = [] {},
                         .wake_coordinator = [] {}});
  std::vector<std::vector<std::byte>> said;
  for (int turn = 0; turn < 60 && !input.empty(); ++turn) {
    const uint32_t action = input.Choose(16);
    const int other = static_cast<int>(input.Choose(static_cast<uint32_t>(ranks)));
    if (action == 0) channel.Depart();
    if (action == 1) (void)channel.AwaitsFarewell();
    if (action == 2) channel.TellBeat();
    if (action == 3) channel.TellSilence(other, input.Choose(2) == 0);
    if (action == 4) channel.LeaveGroup(input.Choose(4));
    if (action == 5) channel.questions().Ask(other, RankQuestion::kStack);
    if (action == 6) channel.questions().Answer();
    if (action == 7) (void)channel.questions().AnswerOf(other, RankQuestion::kReading);
    if (action == 8) (void)directory.Find(other);
    if (action == 9) channel.TellAbort(MakeError(ErrorKind::kAborted, input.Text()));
    if (action < 10) {
      channel.Progress();
      for (auto& message : std::exchange(wire.sent, {})) said.push_back(std::move(message));
      continue;
    }
    // Of the job: the number of its channel, and a kind; or one of this rank's own, damaged.
    std::vector<std::byte> bytes;
    if (action > 13 && !said.empty()) {
      bytes = said[input.Choose(static_cast<uint32_t>(said.size()))];
      input.Damage(bytes);
    } else {
      WireWriter writer;
      writer.Put(JobChannel::kNumber);
      writer.Put(static_cast<uint8_t>(input.Choose(16)));
      writer.PutBytes(input.Bytes());
      bytes.assign(writer.bytes().begin(), writer.bytes().end());
    }
    if (host_of[other] == 0) continue;
    wire.arriving = {other, std::move(bytes)};
    (void)mux.Pump();
  }
  for (int left = 0; left < ranks; ++left) (void)channel.HasLeft(left);
  for (const int watched : channel.watched()) CHECK(watched >= 2 && watched < ranks);
  return 0;
}
