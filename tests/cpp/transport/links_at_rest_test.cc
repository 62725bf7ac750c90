// What a connection keeps of the memory that it needed for long messages.
#include <malloc.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "support/sealings.h"
#include "transport/data/tcp/tcp_peer.h"
#include "transport/net/frames.h"

using namespace horoacc;
using namespace horoacc::testing;

namespace {

/// Blocks of this program's memory that hold more than half a megabyte.
std::atomic<int>& LongBlocks() {
  static std::atomic<int> count = 0;
  return count;
}

void CountIfLong(void* block, int by) {
  if (::malloc_usable_size(block) > 1 << 19) LongBlocks() += by;
}

}  // namespace

void* operator new(size_t bytes) {
  void* const block = std::malloc(bytes);
  if (block == nullptr) std::abort();
  CountIfLong(block, 1);
  return block;
}

void operator delete(void* block) noexcept {
  CountIfLong(block, -1);
  std::free(block);
}

void operator delete(void* block, size_t /*bytes*/) noexcept { operator delete(block); }

namespace {

std::pair<Fd, Fd> Wire() {
  int ends[2];
  CHECK_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  return {Fd(ends[0]), Fd(ends[1])};
}

const std::vector<std::byte>& LongMessage() {
  static const std::vector<std::byte> message(3 << 20);
  return message;
}

}  // namespace

TEST(MessagesLeaveNoLongMemoryBehind) {
  const std::vector<std::byte>& sent = LongMessage();
  for (const Sealing& sealing : AllSealings()) {
    const ConnectionKeys keys = Shake();
    const int before = LongBlocks();
    const auto [near, far] = Wire();
    FrameWriter writer(7, sealing.tag_bytes());
    writer.Use(std::move(Seal::Make(sealing, keys.dial.send, Seal::End::kSend)).value());
    FrameReader reader(
        7, sent.size(),
        std::move(Seal::Make(sealing, keys.accept.receive, Seal::End::kReceive)).value());
    writer.Queue(5, sent);
    while (!reader.Next().value())
      CHECK(writer.FlushTo(near.get()).ok() && reader.FillFrom(far.get()).ok());
    CHECK_EQ(LongBlocks(), before);
  }
}

TEST(StreamsLeaveNoLongMemoryBehind) {
  const std::vector<std::byte>& sent = LongMessage();
  std::vector<std::byte> got(sent.size());
  for (const Sealing& sealing : AllSealings()) {
    const ConnectionKeys keys = Shake();
    const int before = LongBlocks();
    auto [near, far] = Wire();
    SocketCounters counters;
    const Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
    TcpPeer sender(1, 3, false, 0, 0, epoll.get(), 1, counters, sealing);
    TcpPeer receiver(0, 3, false, 0, 0, epoll.get(), 1, counters, sealing);
    CHECK(sender.Join(std::move(near), keys.dial).ok());
    CHECK(receiver.Join(std::move(far), keys.accept).ok());
    OutboundLink* const out = sender.out().Open({{2, 8}, 1}).value();
    InboundLink* const in = receiver.in().Open({{2, 8}, 0, 1, 4, sent.size()}).value();
    CHECK(in->Expect(got.size(), std::array{std::span(got)}).ok());
    sender.out().Post(*out, std::array{std::span(sent)});
    while (in->Arrived().value() == nullptr) CHECK(sender.Send().ok() && receiver.Read(0).ok());
    CHECK(!sender.Send().value());
    CHECK_EQ(LongBlocks(), before);
  }
}
