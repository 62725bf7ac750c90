// A peer of the data links that has proved the secret and is out of its mind: whole headers that
// say what they want, raw bytes, and this rank's own calls between them.
#include <sys/socket.h>

#include <array>
#include <deque>
#include <map>

#include "fuzz/input.h"
#include "support/socket_pair.h"
#include "transport/data/tcp/tcp_peer.h"

using namespace horoacc;

namespace {

constexpr uint64_t kSlotBytes = 128;

struct Receiver final : FrameReceiver {
  Result<std::shared_ptr<InboundMessage>> OnStripe(const DataHeader& stripe) override {
    return peer.OnStripe(stripe);
  }
  Status OnNotice(const DataHeader& header, std::string_view text) override {
    return peer.OnNotice(header, text);
  }
  SocketCounters counters;
  TcpPeer peer{1, 3, true, 0, 0, -1, 1, counters};
};

std::vector<std::byte> Frame(fuzz::Input& input) {
  DataHeader header;
  header.kind = static_cast<DataKind>(input.Choose(7));
  header.channel = static_cast<uint8_t>(input.Choose(2));
  header.flags = static_cast<uint16_t>(input.Choose(4));
  header.epoch = input.Choose(16) == 0 ? 4 : 3;
  header.set = input.Choose(2);
  header.sequence = input.Choose(4);
  header.number = input.Choose(8) == 0 ? input.Get<uint64_t>() : input.Choose(6);
  // What a link that is not open yet may claim is bounded, but not small.
  header.total = input.Choose(8) == 0 ? input.Get<uint32_t>() % (1 << 20) : input.Choose(200);
  header.offset = input.Choose(8) == 0 ? input.Get<uint64_t>() : input.Choose(200);
  const std::vector<std::byte> payload = input.Bytes();
  header.length =
      input.Choose(8) == 0 ? input.Get<uint32_t>() : static_cast<uint32_t>(payload.size());
  header.payload_check = input.Choose(8) == 0 ? 1 : Crc32c(payload);
  header.check = header.Checksum();
  const auto head = std::as_bytes(std::span(&header, 1));
  std::vector<std::byte> bytes(head.begin(), head.end());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  SocketPair wire;
  const Fd& near = wire.near;
  TcpTraffic traffic;
  Receiver receiver;
  TcpPeer& peer = receiver.peer;
  TcpStream stream(std::move(wire.far), 3, false, traffic, receiver.counters);
  std::map<LinkKey, std::deque<std::vector<std::byte>>> places;
  std::map<LinkKey, InboundLink*> in;
  std::map<LinkKey, OutboundLink*> out;
  while (!input.empty()) {
    const uint32_t action = input.Choose(9);
    const LinkKey key{{input.Choose(2), input.Choose(4)}, static_cast<uint8_t>(input.Choose(2))};
    if (action < 4) {
      std::vector<std::byte> bytes = action == 0 ? input.Bytes() : Frame(input);
      if (action == 1) input.Damage(bytes);
      CHECK_EQ(::send(near.get(), bytes.data(), bytes.size(), 0), bytes.size());
      if (!stream.Read(receiver).ok()) return 0;
    } else if (action == 4 && !in.contains(key)) {
      const auto opened = peer.in().Open({key.collective, 1, key.channel, 4, kSlotBytes});
      if (!opened.ok()) break;
      in[key] = opened.value();
    } else if (action == 5 && in.contains(key)) {
      auto& place = places[key].emplace_back(input.Choose(kSlotBytes + 1));
      const auto room = std::span(place);
      const size_t cut = room.size() / 3;
      if (!in[key]->Expect(room.size(), std::array{room.first(cut), room.subspan(cut)}).ok()) break;
    } else if (action == 6 && in.contains(key)) {
      const auto arrived = in[key]->Arrived();
      if (!arrived.ok()) break;
      if (arrived.value() != nullptr) in[key]->Release();
    } else if (action == 7 && in.contains(key)) {
      peer.in().Close(in[key]);
      in.erase(key);
      places.erase(key);  // nothing may write there any more
    } else if (action == 8 && !out.contains(key)) {
      const auto opened = peer.out().Open(key);
      if (!opened.ok()) break;
      out[key] = opened.value();
      peer.out().Post(*out[key], std::array{std::as_bytes(std::span(data, size)).first(1)});
    }
  }
  peer.in().DropAll();
  places.clear();
  const std::vector<std::byte> rest(300, std::byte{1});
  (void)::send(near.get(), rest.data(), rest.size(), MSG_DONTWAIT);
  (void)stream.Read(receiver);
  return 0;
}
