// Segments and the arena on them.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "support/check.h"
#include "support/forked_ranks.h"
#include "transport/memory/arena.h"
#include "transport/memory/memory_limits.h"
#include "transport/memory/segment.h"

using namespace horoacc;

namespace {

constexpr size_t kMiB = 1 << 20;

Segment MakeSegment(size_t bytes) { return std::move(Segment::Create("test", bytes)).value(); }

/// Bytes of memory that the segment's file really has.
uint64_t FileBytes(const Segment& segment) {
  struct stat info = {};
  ::fstat(segment.fd(), &info);
  return static_cast<uint64_t>(info.st_blocks) * 512;
}

}  // namespace

TEST(SegmentIsSparseZeroedAndSealed) {
  const Segment segment = MakeSegment(8ULL << 30);
  CHECK_EQ(segment.size(), 8ULL << 30);
  CHECK_EQ(FileBytes(segment), 0U);
  CHECK_EQ(static_cast<int>(segment.data()[5ULL << 30]), 0);
  segment.data()[0] = std::byte{7};
  CHECK(FileBytes(segment) > 0);
  CHECK(FileBytes(segment) < kMiB);
  CHECK(::ftruncate(segment.fd(), 4096) != 0);
  CHECK((::fcntl(segment.fd(), F_GETFD) & FD_CLOEXEC) != 0);
}

TEST(SegmentRoundsUpAndKnowsItsRange) {
  const Segment segment = MakeSegment(5000);
  CHECK_EQ(segment.size(), 8192U);
  CHECK(segment.Contains(segment.data() + 8191));
  CHECK(!segment.Contains(segment.data() + 8192));
  CHECK(!segment.Contains(segment.data() - 1));
  CHECK(!Segment::Create("test", 0).ok());
}

TEST(SegmentMapsWhatAPeerSent) {
  const Segment one = MakeSegment(3 * kMiB);
  const Segment two = std::move(Segment::Map(Fd(::dup(one.fd())))).value();
  CHECK_EQ(two.size(), one.size());
  CHECK(two.data() != one.data());
  one.data()[kMiB] = std::byte{42};
  CHECK_EQ(static_cast<int>(two.data()[kMiB]), 42);
}

TEST(SegmentRefusesAFileThatCouldShrink) {
  Fd file(::memfd_create("unsealed", MFD_CLOEXEC));
  CHECK_EQ(::ftruncate(file.get(), 4096), 0);
  CHECK(!Segment::Map(std::move(file)).ok());
}

namespace {

/// Whether anything is mapped there.
bool IsMapped(const std::byte* address) {
  unsigned char resident = 0;
  return ::mincore(const_cast<std::byte*>(address), 4096, &resident) == 0;
}

}  // namespace

/// Whether the kernel has noted the flag of smaps for the segment's mapping.
bool HasFlag(const Segment& segment, const std::string& flag) {
  std::ifstream maps("/proc/self/smaps");
  std::ostringstream begin;
  begin << std::hex << reinterpret_cast<uintptr_t>(segment.data()) << '-';
  std::string line;
  while (std::getline(maps, line) && !line.starts_with(begin.str())) continue;
  while (std::getline(maps, line) && !line.starts_with("VmFlags:")) continue;
  return (line + ' ').find(" " + flag + " ") != std::string::npos;
}

TEST(SegmentIsLeftOutOfCoreDumps) { CHECK(HasFlag(MakeSegment(8 * kMiB), "dd")); }

TEST(SegmentAsksForHugePages) {
  const Segment segment = MakeSegment(8 * kMiB);
  CHECK(!HasFlag(segment, "hg"));
  segment.PreferHugePages();
  const bool kernel_has_any = std::filesystem::exists("/sys/kernel/mm/transparent_hugepage");
  CHECK_EQ(HasFlag(segment, "hg"), kernel_has_any);
}

namespace {

/// A folder with files, for as long as the object lives.
struct Files {
  explicit Files(const std::map<std::string, std::string>& contents) {
    for (const auto& [name, content] : contents) {
      std::filesystem::create_directories((folder / name).parent_path());
      std::ofstream(folder / name) << content;
    }
  }
  ~Files() { std::filesystem::remove_all(folder); }
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("horoacc-test-" + std::to_string(::getpid()));
};

}  // namespace

TEST(ControlGroupsLimitMemory) {
  struct Case {
    std::map<std::string, std::string> files;
    uint64_t limit;
  };
  const Case cases[] = {
      {{{"self", "0::/a/b\n"}, {"sys/a/memory.max", "7000\n"}, {"sys/a/b/memory.max", "max\n"}},
       7000},
      {{{"self", "0::/\n"}, {"sys/memory.max", "5000\n"}}, 5000},
      {{{"self", "0::/elsewhere\n"}, {"sys/memory.max", "5000\n"}}, 5000},
      {{{"self", "0::/a\n"}, {"sys/a/memory.max", "max\n"}}, 0},
      {{{"self", "4:cpu,memory:/a\n0::/\n"}, {"sys/memory/a/memory.limit_in_bytes", "3000\n"}},
       3000},
      {{{"self", "no line of the kernel's\n"}}, 0},
      {{}, 0},
  };
  for (const Case& one : cases) {
    const Files files(one.files);
    CHECK_EQ(ControlGroupLimit(files.folder / "self", files.folder / "sys"), one.limit);
  }
}

TEST(AddressesFitUnderTheLimitOfTheProcess) {
  CHECK(AddressesForEach(1, 0) >= uint64_t{1} << 40);
  CHECK(AddressesForEach(1000, 0) <= (uint64_t{1} << 47) / 1000);
  const std::vector<int> codes = RunForked(1, [](int) {
    uint64_t pages = 0;  // of addresses in use; a sanitizer has terabytes
    std::ifstream("/proc/self/statm") >> pages;
    const uint64_t addresses = pages * 4096 + (uint64_t{64} << 30);
    const rlimit few{addresses, addresses};
    if (::setrlimit(RLIMIT_AS, &few) != 0) return 2;
    const uint64_t each = AddressesForEach(4, uint64_t{16} << 30);
    std::vector<Segment> all;
    for (int part = 0; part < 4; ++part) {
      Result<Segment> made = Segment::Create("test", each);
      if (!made.ok()) return 3;
      all.push_back(std::move(made).value());
    }
    return each > uint64_t{4} << 30 ? 0 : 4;
  });
  CHECK_EQ(codes.front(), 0);
}

TEST(SegmentKeepsOnlyWhatItIsToldTo) {
  Segment segment = MakeSegment(8 * kMiB);
  std::byte* const base = segment.data();
  base[0] = std::byte{7};
  {
    const Segment copy = segment;
    segment.KeepOnly(kMiB);  // somebody else looks at it
    CHECK_EQ(segment.size(), 8 * kMiB);
  }
  segment.KeepOnly(kMiB);
  CHECK_EQ(segment.size(), kMiB);
  CHECK(IsMapped(base + kMiB - 4096) && !IsMapped(base + kMiB) && !IsMapped(base + 7 * kMiB));
  CHECK_EQ(static_cast<int>(base[0]), 7);
  CHECK(segment.fd() >= 0);
  segment.KeepOnly(0);
  CHECK(!IsMapped(base));
  CHECK_EQ(segment.fd(), -1);
  CHECK(!segment.Contains(base));

  Segment forgotten = MakeSegment(8 * kMiB);
  std::byte* const start = forgotten.data();
  start[0] = std::byte{7};
  forgotten.Forget(kMiB);
  CHECK(IsMapped(start) && !IsMapped(start + kMiB));
  CHECK_EQ(static_cast<int>(start[0]), 0);
  CHECK_EQ(forgotten.fd(), -1);
}

TEST(ArenaThatIsClosedEndsBehindTheLastLiveBlock) {
  const Segment segment = MakeSegment(64 * kMiB);
  Arena arena(segment.data(), segment.size(), segment.fd(), 0);
  void* freed = arena.Allocate(4 * kMiB);
  auto* live = static_cast<std::byte*>(arena.Allocate(2 * kMiB));
  void* behind = arena.Allocate(8 * kMiB);
  std::memset(live, 5, 2 * kMiB);
  arena.Free(freed);
  arena.Free(behind);
  const uint64_t end = arena.Close();
  CHECK_EQ(end, arena.OffsetOf(live) + 2 * kMiB);
  CHECK_EQ(arena.Close(), end);
  CHECK(arena.Contains(live + 2 * kMiB - 1) && !arena.Contains(live + 2 * kMiB));
  CHECK(arena.Allocate(64) == nullptr);
  CHECK_EQ(static_cast<int>(live[kMiB]), 5);
  const uint64_t before = FileBytes(segment);
  arena.Free(live);  // nobody will use it again
  CHECK(FileBytes(segment) + 2 * kMiB <= before);
  CHECK_EQ(arena.stats().bytes_in_use, 0U);

  const Segment other = MakeSegment(4 * kMiB);
  Arena empty(other.data(), other.size(), other.fd(), 0);
  empty.Free(empty.Allocate(kMiB));
  CHECK_EQ(empty.Close(), 0U);
  CHECK(!empty.Contains(other.data()));
}

TEST(ArenaAlignsAndSeparatesBlocks) {
  const Segment segment = MakeSegment(256 * kMiB);
  Arena arena(segment.data(), segment.size(), segment.fd(), 0);
  std::vector<std::pair<std::byte*, size_t>> blocks;
  for (const size_t bytes : {0UL, 1UL, 63UL, 64UL, 65UL, 1000UL, 2048UL, 2049UL, 4095UL, 4096UL,
                             4097UL, 65536UL, 100000UL, 3 * kMiB, 10 * kMiB + 1}) {
    for (int copy = 0; copy < 3; ++copy) {
      auto* block = static_cast<std::byte*>(arena.Allocate(bytes));
      CHECK(block != nullptr);
      CHECK_EQ(reinterpret_cast<uintptr_t>(block) % 64, 0U);
      if (bytes >= 4096) CHECK_EQ(reinterpret_cast<uintptr_t>(block) % 4096, 0U);
      CHECK(arena.Contains(block));
      CHECK_EQ(arena.OffsetOf(block), static_cast<uint64_t>(block - segment.data()));
      std::memset(block, static_cast<int>(blocks.size()), bytes);
      blocks.emplace_back(block, bytes);
    }
  }
  for (size_t index = 0; index < blocks.size(); ++index) {
    const auto& [block, bytes] = blocks[index];
    for (size_t at = 0; at < bytes; at += 61) CHECK(block[at] == static_cast<std::byte>(index));
    if (bytes > 0) CHECK(block[bytes - 1] == static_cast<std::byte>(index));
  }
  CHECK_EQ(arena.stats().allocations, blocks.size());
  for (const auto& [block, bytes] : blocks) arena.Free(block);
  CHECK_EQ(arena.stats().bytes_in_use, 0U);
}

TEST(ArenaReusesTheLastFreedFirst) {
  const Segment segment = MakeSegment(64 * kMiB);
  Arena arena(segment.data(), segment.size(), segment.fd(), 0);
  void* a = arena.Allocate(kMiB);
  void* b = arena.Allocate(kMiB);
  void* c = arena.Allocate(2 * kMiB);
  arena.Free(a);
  arena.Free(c);
  arena.Free(b);
  CHECK(arena.Allocate(kMiB) == b);
  CHECK(arena.Allocate(kMiB - 1000) == a);  // the same class
  CHECK(arena.Allocate(2 * kMiB) == c);
}

TEST(ArenaIsExhaustedAndRecovers) {
  const Segment segment = MakeSegment(4 * kMiB);
  Arena arena(segment.data(), segment.size(), segment.fd(), 0);
  CHECK(arena.Allocate(5 * kMiB) == nullptr);
  CHECK(arena.Allocate(SIZE_MAX) == nullptr);
  std::vector<void*> blocks;
  while (void* block = arena.Allocate(kMiB)) blocks.push_back(block);
  CHECK_EQ(blocks.size(), 4U);
  CHECK(arena.Allocate(1) == nullptr);
  arena.Free(blocks[2]);
  // No fresh range is left: a block of a larger class serves.
  CHECK(arena.Allocate(kMiB - 300000) == blocks[2]);
  CHECK(arena.Allocate(kMiB) == nullptr);
}

TEST(ArenaInsideASegment) {
  const Segment segment = MakeSegment(16 * kMiB);
  Arena arena(segment.data() + kMiB, 8 * kMiB, segment.fd(), kMiB);
  CHECK(!arena.Contains(segment.data()));
  CHECK(!arena.Contains(segment.data() + 9 * kMiB));
  auto* block = static_cast<std::byte*>(arena.Allocate(kMiB));
  CHECK_EQ(arena.OffsetOf(block), 0U);
  std::memset(segment.data(), 1, kMiB);
  std::memset(block, 2, kMiB);
  arena.Free(block);
  arena.Trim();
  arena.Trim();
  CHECK_EQ(static_cast<int>(block[0]), 0);
  CHECK_EQ(static_cast<int>(segment.data()[kMiB - 1]), 1);  // the neighbour's page is untouched
}

TEST(TrimReturnsOnlyWhatStayedFree) {
  const Segment segment = MakeSegment(256 * kMiB);
  Arena arena(segment.data(), segment.size(), segment.fd(), 0);
  void* cold = arena.Allocate(32 * kMiB);
  void* warm = arena.Allocate(16 * kMiB);
  void* live = arena.Allocate(8 * kMiB);
  for (auto [block, bytes] : {std::pair(cold, 32), std::pair(warm, 16), std::pair(live, 8)}) {
    std::memset(block, 5, bytes * kMiB);
  }
  CHECK(arena.stats().bytes_touched >= 56 * kMiB);
  arena.Free(cold);
  arena.Free(warm);
  arena.Trim();
  CHECK(FileBytes(segment) >= 56 * kMiB);  // a step may want them again
  CHECK(arena.Allocate(16 * kMiB) == warm);
  arena.Free(warm);
  arena.Trim();
  CHECK(FileBytes(segment) < 32 * kMiB);
  CHECK(FileBytes(segment) >= 24 * kMiB);
  CHECK(arena.stats().bytes_touched < 32 * kMiB);
  CHECK_EQ(static_cast<int>(static_cast<std::byte*>(live)[kMiB]), 5);
  CHECK_EQ(static_cast<int>(static_cast<std::byte*>(warm)[kMiB]), 5);
  auto* again = static_cast<std::byte*>(arena.Allocate(32 * kMiB));
  CHECK(again == cold);
  CHECK_EQ(static_cast<int>(again[0]), 0);
}

TEST(ArenaServesThreads) {
  const Segment segment = MakeSegment(512 * kMiB);
  Arena arena(segment.data(), segment.size(), segment.fd(), 0);
  std::vector<std::jthread> threads;
  for (int seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&arena, seed] {
      std::vector<std::pair<unsigned char*, size_t>> mine;
      unsigned state = 12345U + static_cast<unsigned>(seed);
      for (int round = 0; round < 2000; ++round) {
        state = state * 1664525U + 1013904223U;
        const size_t bytes = 1 + (state >> 8) % 20000;
        auto* block = static_cast<unsigned char*>(arena.Allocate(bytes));
        CHECK(block != nullptr);
        block[0] = block[bytes - 1] = static_cast<unsigned char>(seed);
        mine.emplace_back(block, bytes);
        if (mine.size() > 20) {
          auto [old, length] = mine[state % mine.size()];
          CHECK(old[0] == seed && old[length - 1] == seed);
          std::erase(mine, std::pair(old, length));
          arena.Free(old);
        }
        if (round % 500 == 0) arena.Trim();
      }
      for (auto [block, bytes] : mine) arena.Free(block);
    });
  }
  threads.clear();
  CHECK_EQ(arena.stats().bytes_in_use, 0U);
}

TEST(ForkedChildHasItsOwnSnapshotAndNoArena) {
  const Segment segment = MakeSegment(64 * kMiB);
  Arena arena(segment.data(), segment.size(), segment.fd(), 0);
  auto* block = static_cast<unsigned char*>(arena.Allocate(kMiB));
  auto* small = static_cast<unsigned char*>(arena.Allocate(100));
  std::memset(block, 1, kMiB);
  std::memset(small, 3, 100);
  int go[2];
  CHECK_EQ(::pipe(go), 0);
  const Fd go_read(go[0]);
  const Fd go_write(go[1]);

  arena.BeforeFork();
  ForkedRank child([&] {
    arena.AfterForkInChild();
    char byte = 0;
    if (::read(go_read.get(), &byte, 1) != 1) return 1;  // the parent has written meanwhile
    if (block[0] != 1 || block[kMiB - 1] != 1 || small[99] != 3) return 2;
    if (arena.Allocate(100) != nullptr) return 3;
    arena.Free(block);
    block[0] = 9;
    small[0] = 9;
    if (arena.stats().bytes_in_use != 0) return 4;
    ForkedRank grandchild([&] { return block[0] == 9 && block[1] == 1 ? 0 : 1; });
    return grandchild.Await(NowNs() + 20 * kSecond) == 0 ? 0 : 5;
  });
  arena.AfterForkInParent();

  std::memset(block, 2, kMiB);
  std::memset(small, 4, 100);
  arena.Free(small);
  CHECK(arena.Allocate(100) == small);
  CHECK_EQ(::write(go_write.get(), "x", 1), 1);
  CHECK_EQ(child.Await(NowNs() + 30 * kSecond), 0);
  CHECK_EQ(static_cast<int>(block[0]), 2);  // the child's writes did not arrive here
  CHECK_EQ(static_cast<int>(small[0]), 4);
}

TEST(ForkedChildReadsNoTornSnapshot) {
  for (const bool lacks_descriptors : {false, true}) {
    const Segment segment = MakeSegment(64 * kMiB);
    Arena arena(segment.data(), segment.size(), segment.fd(), 0);
    auto* block = static_cast<unsigned char*>(arena.Allocate(kMiB));
    std::memset(block, 1, kMiB);
    rlimit descriptors{};
    CHECK_EQ(::getrlimit(RLIMIT_NOFILE, &descriptors), 0);
    const rlimit none{0, descriptors.rlim_max};
    if (lacks_descriptors) CHECK_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    arena.BeforeFork();
    CHECK_EQ(::setrlimit(RLIMIT_NOFILE, &descriptors), 0);
    ForkedRank child([&] {
      if (!lacks_descriptors) ::raise(SIGSTOP);  // for longer than the parent waits
      ::signal(SIGSEGV, SIG_DFL);                // not a sanitizer's handler
      arena.AfterForkInChild();
      return static_cast<int>(block[0]);
    });
    arena.AfterForkInParent();
    std::memset(block, 2, kMiB);
    if (!lacks_descriptors) child.Signal(SIGCONT);
    CHECK_EQ(child.Await(NowNs() + 30 * kSecond), 1000 + SIGSEGV);
  }
}

TEST(ForkWithoutHandlersStillDoesNotAllocate) {
  const Segment segment = MakeSegment(4 * kMiB);
  Arena arena(segment.data(), segment.size(), segment.fd(), 0);
  void* block = arena.Allocate(100);
  ForkedRank child([&] {
    arena.Free(block);
    return arena.Allocate(100) == nullptr ? 0 : 1;
  });
  CHECK_EQ(child.Await(NowNs() + 30 * kSecond), 0);
  CHECK_EQ(arena.stats().bytes_in_use, 100U);
}

TEST(ParentGoesOnIfTheChildDiesAtOnce) {
  const Segment segment = MakeSegment(4 * kMiB);
  Arena arena(segment.data(), segment.size(), segment.fd(), 0);
  arena.BeforeFork();
  ForkedRank child([] { return 3; });  // dies without its handler
  arena.AfterForkInParent();
  CHECK(arena.Allocate(100) != nullptr);
  CHECK_EQ(child.Await(NowNs() + 30 * kSecond), 3);
}
