#pragma once
// Recognises a forked child.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace horoacc {

/// A word that reads 0 in every forked child; costs no system call, unless there is no memory for
/// it.
class OwnerMark {
 public:
  OwnerMark()
      : page_(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (page_ == MAP_FAILED) {
      process_ = ::getpid();
      return;
    }
    ::madvise(page_, kBytes, MADV_WIPEONFORK);
    word().store(1, std::memory_order_relaxed);
  }
  ~OwnerMark() { Drop(); }
  OwnerMark(const OwnerMark&) = delete;
  OwnerMark& operator=(const OwnerMark&) = delete;

  [[nodiscard]] bool Here() const {
    if (page_ != MAP_FAILED) return word().load(std::memory_order_relaxed) == 1;
    return process_ != 0 && process_ == ::getpid();
  }
  void Clear() {
    process_ = 0;
    if (page_ != MAP_FAILED) word().store(0, std::memory_order_relaxed);
  }
  /// Unmaps its page.
  void Drop() {
    if (page_ != MAP_FAILED) ::munmap(page_, kBytes);
    page_ = MAP_FAILED;
    process_ = 0;
  }

 private:
  static constexpr size_t kBytes = 4096;
  [[nodiscard]] std::atomic<uint32_t>& word() const {
    return *static_cast<std::atomic<uint32_t>*>(page_);
  }
  void* page_;
  pid_t process_ = 0;  ///< of the owner, without a page
};

}  // namespace horoacc
