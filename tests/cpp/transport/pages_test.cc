// Memory on a kernel whose pages have 64 KiB, as many of aarch64 do. The calls that the core makes
// come here first, and are refused where such a kernel would refuse them.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/page.h"
#include "negotiate/control_segment/control_segment.h"
#include "support/check.h"
#include "transport/bootstrap/inproc.h"
#include "transport/memory/arena.h"
#include "transport/memory/segment.h"

namespace {

constexpr size_t kPage = 64 << 10;
constexpr size_t kMiB = 1 << 20;
int refused = 0;

size_t Rounded(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

bool IsAligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % kPage == 0; }

int Refuse() {
  ++refused;
  errno = EINVAL;
  return -1;
}

}  // namespace

extern "C" {

long sysconf(int name) noexcept {
  CHECK(name == _SC_PAGESIZE || name == _SC_PHYS_PAGES);
  return name == _SC_PAGESIZE ? static_cast<long>(kPage) : 1 << 16;
}

int munmap(void* address, size_t bytes) noexcept {
  if (!IsAligned(address)) return Refuse();
  return static_cast<int>(syscall(SYS_munmap, address, Rounded(bytes)));
}

int madvise(void* address, size_t bytes, int advice) noexcept {
  if (!IsAligned(address)) return Refuse();
  return static_cast<int>(syscall(SYS_madvise, address, Rounded(bytes), advice));
}

void* mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  const auto map = [&](void* at, size_t length, int more, int file) {
    return reinterpret_cast<void*>(
        syscall(SYS_mmap, at, length, protection, flags | more, file, file < 0 ? 0 : offset));
  };
  if (!IsAligned(address) || static_cast<size_t>(offset) % kPage != 0) {
    Refuse();
    return MAP_FAILED;
  }
  if (address != nullptr) return map(address, Rounded(bytes), 0, fd);
  // A place that is aligned: the page behind it is left as it is.
  void* const wide = reinterpret_cast<void*>(syscall(
      SYS_mmap, nullptr, Rounded(bytes) + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (wide == MAP_FAILED) return wide;
  return map(reinterpret_cast<void*>(Rounded(reinterpret_cast<uintptr_t>(wide))), Rounded(bytes),
             MAP_FIXED, fd);
}
}

using namespace horoacc;

namespace {

bool IsMapped(const std::byte* address) {
  unsigned char resident = 0;
  return mincore(const_cast<std::byte*>(address), 4096, &resident) == 0;
}

Segment MakeSegment(size_t bytes) {
  Result<Segment> made = Segment::Create("pages_test", bytes);
  CHECK(made.ok());
  return std::move(made.value());
}

}  // namespace

TEST(a_segment_gives_its_end_back) {
  Segment segment = MakeSegment(kMiB + 1);
  CHECK_EQ(segment.size(), kMiB + kPage);
  const std::byte* const base = segment.data();
  segment.KeepOnly(kMiB / 2 + 1);
  CHECK(IsMapped(base + kMiB / 2) && !IsMapped(base + kMiB / 2 + kPage));
  segment.Forget(kMiB / 4 + 1);
  CHECK(IsMapped(base + kMiB / 4) && !IsMapped(base + kMiB / 2));
  CHECK_EQ(refused, 0);
}

TEST(an_arena_returns_what_is_free) {
  Segment segment = MakeSegment(64 * kMiB);
  std::byte* const base = segment.data();
  Arena arena(base, segment.size(), segment.fd(), 0);
  for (const size_t bytes : {size_t{100}, size_t{5000}, size_t{40000}, 3 * kMiB}) {
    void* const block = arena.Allocate(bytes);
    void* const neighbour = arena.Allocate(bytes);
    std::memset(block, 1, bytes);
    std::memset(neighbour, 2, bytes);
    arena.Free(block);
    arena.Trim();
    arena.Trim();
    CHECK_EQ(*static_cast<char*>(block), bytes < kPage / 2 ? 1 : 0);
    CHECK_EQ(*static_cast<char*>(neighbour), 2);
    arena.Free(neighbour);
  }
  arena.Trim();
  arena.Trim();
  CHECK(arena.stats().bytes_touched < kMiB);
  void* const last = arena.Allocate(40000);
  arena.Own(std::move(segment));
  CHECK(IsMapped(static_cast<std::byte*>(last)) && !IsMapped(base + 32 * kMiB));
  arena.Free(last);
  CHECK(arena.Over() && !IsMapped(base));
  CHECK_EQ(refused, 0);
}

TEST(the_control_segment_is_made_of_whole_pages) {
  constexpr uint32_t kRanks = 3;
  auto hub = InprocHub::Create(kRanks, ControlSegment::BytesFor(kRanks), kMiB);
  CHECK(hub.ok());
  const HostShare share = hub.value()->MakeHostShare(0);
  const ControlSegment control(share, 0);
  std::byte* const set = control.set_memory(5);
  *set = std::byte{1};
  set[-1] = std::byte{2};
  control.WipeSet(5);
  CHECK_EQ(static_cast<int>(*set), 0);
  CHECK_EQ(static_cast<int>(set[-1]), 2);
  CHECK_EQ(control.BytesUpTo(1) % kPage, 0U);
  CHECK_EQ(refused, 0);
}

TEST(such_a_kernel_refuses_the_middle_of_a_page) {
  Segment segment = MakeSegment(kMiB);
  CHECK_EQ(munmap(segment.data() + 4096, 4096), -1);
  CHECK_EQ(refused, 1);
}
