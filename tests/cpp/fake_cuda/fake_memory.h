#pragma once
// The memory of the fake GPU: a file, so that other processes can open it.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace horoacc::testing {

/// One file with two ranges of addresses: one to give out, which is not accessible, and the real
/// one.
class FakeMemory {
 public:
  static constexpr size_t kBytes = size_t{4} << 30;  // of a device; sparse

  explicit FakeMemory(int device) : FakeMemory(device, memfd_create("fake_cuda", 0)) {
    if (ftruncate(fd_, kBytes) != 0) std::abort();
  }
  /// The memory of another process; null if the process has ended.
  static std::unique_ptr<FakeMemory> Open(int device, pid_t process, int fd) {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/fd/%d", static_cast<int>(process), fd);
    const int opened = open(path, O_RDWR | O_CLOEXEC);
    if (opened < 0) return nullptr;
    return std::unique_ptr<FakeMemory>(new FakeMemory(device, opened));
  }
  ~FakeMemory() {
    munmap(shown_, kBytes);
    munmap(real_, kBytes);
    close(fd_);
  }
  FakeMemory(const FakeMemory&) = delete;
  FakeMemory& operator=(const FakeMemory&) = delete;

  [[nodiscard]] int device() const { return device_; }
  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] bool Has(const void* memory) const {
    const auto* at = static_cast<const std::byte*>(memory);
    return at >= shown_ && at < shown_ + kBytes;
  }
  [[nodiscard]] size_t OffsetOf(const void* memory) const {
    return static_cast<size_t>(static_cast<const std::byte*>(memory) - shown_);
  }
  [[nodiscard]] std::byte* Shown(size_t offset) const { return shown_ + offset; }
  [[nodiscard]] std::byte* Real(size_t offset) const { return real_ + offset; }

  void* Allocate(size_t bytes) {
    const size_t size = (bytes + 511) / 512 * 512 + 512;
    const std::scoped_lock lock(mutex_);
    size_t at = 0;
    if (auto& free = free_[size]; !free.empty()) {
      at = free.back();
      free.pop_back();
    } else {
      at = end_;
      end_ += size;
      if (end_ > kBytes) return nullptr;
    }
    sizes_[at] = size;
    return shown_ + at;
  }
  void Free(void* memory) {
    const std::scoped_lock lock(mutex_);
    free_[sizes_.at(OffsetOf(memory))].push_back(OffsetOf(memory));
  }

 private:
  FakeMemory(int device, int fd) : device_(device), fd_(fd) {
    if (fd < 0) std::abort();
    shown_ = static_cast<std::byte*>(
        mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    real_ =
        static_cast<std::byte*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    if (shown_ == MAP_FAILED || real_ == MAP_FAILED) std::abort();
  }

  const int device_;
  const int fd_;
  std::byte* shown_ = nullptr;
  std::byte* real_ = nullptr;
  std::mutex mutex_;
  size_t end_ = 0;
  std::map<size_t, size_t> sizes_;
  std::map<size_t, std::vector<size_t>> free_;
};

}  // namespace horoacc::testing
