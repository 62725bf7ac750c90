// Messages of control links and of the rendezvous: a stream of bytes in which some frames are
// whole, of a peer that knows the checksum, or is on the way of a sealed connection and does not
// know the key.
#include <sys/socket.h>

#include <array>

#include "base/crc32c.h"
#include "fuzz/input.h"
#include "support/socket_pair.h"
#include "transport/net/frames.h"

using namespace horoacc;

namespace {

constexpr uint64_t kLongest = 4096;
constexpr size_t kCheckAt = 28;  ///< of the header's own checksum

struct Wire : SocketPair {
  std::vector<std::byte> Drain() const {
    std::vector<std::byte> all(1 << 13);
    const ssize_t got = ::recv(far.get(), all.data(), all.size(), MSG_DONTWAIT);
    all.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
    return all;
  }
};

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const Sealing sealing{input.Choose(2) == 0 ? SealKind::kNone : SealKind::kHmac};
  const auto seal = [&](Seal::End end) { return std::move(Seal::Make(sealing, {}, end)).value(); };
  const Wire honest, way;
  FrameWriter writer(7, sealing.tag_bytes());
  writer.Use(seal(Seal::End::kSend));
  FrameReader reader(7, kLongest, seal(Seal::End::kReceive));
  std::vector<std::vector<std::byte>> sent;
  size_t heard = 0;
  while (!input.empty()) {
    std::vector<std::byte> bytes;
    if (input.Choose(4) == 0) {
      bytes = input.Bytes();
    } else {
      sent.push_back(input.Bytes());
      writer.Queue(5, sent.back());
      CHECK(writer.FlushTo(honest.near.get()).value());
      bytes = honest.Drain();
      const size_t before = bytes.size();
      input.Damage(bytes);
      if (sealing.kind == SealKind::kNone && bytes.size() == before) {
        const uint32_t check = Crc32c(std::span(bytes).first(kCheckAt));
        std::memcpy(bytes.data() + kCheckAt, &check, sizeof check);
      }
    }
    CHECK_EQ(::send(way.near.get(), bytes.data(), bytes.size(), 0), bytes.size());
    CHECK(reader.FillFrom(way.far.get()).ok());
    for (;;) {
      const auto frame = reader.Next();
      if (!frame.ok()) return 0;
      if (!frame.value()) break;
      CHECK(frame.value()->bytes.size() <= kLongest);
      // What is sealed comes as it was sent, or not at all.
      if (sealing.kind == SealKind::kNone) continue;
      CHECK(heard < sent.size() && frame.value()->bytes == sent[heard]);
      ++heard;
    }
  }
  return 0;
}
