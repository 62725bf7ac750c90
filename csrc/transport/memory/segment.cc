#include "transport/memory/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <utility>

#include "base/page.h"

namespace horoacc {
namespace {

size_t InPages(size_t bytes) {
  const size_t page = PageSize();
  return (bytes + page - 1) / page * page;
}

}  // namespace

struct Segment::Mapping {
  Mapping(Fd descriptor, std::byte* base, size_t size)
      : fd(std::move(descriptor)), data(base), bytes(size) {}
  ~Mapping() {
    if (bytes > 0) ::munmap(data, bytes);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  Fd fd;
  std::byte* data;
  size_t bytes;
};

Result<Segment> Segment::Create(const char* label, size_t bytes) {
  if (bytes == 0) return MakeError(ErrorKind::kInvalid, "a segment cannot be empty");
  const size_t rounded = InPages(bytes);
  Fd fd(::memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return SystemError("memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(rounded)) != 0) {
    return SystemError("ftruncate of a segment to " + std::to_string(rounded) + " bytes");
  }
  // If a peer shrank the file, every access behind the new end would be a SIGBUS.
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return SystemError("sealing a segment");
  }
  return Map(std::move(fd));
}

Result<Segment> Segment::Map(Fd fd) {
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return SystemError("fstat of a segment");
  if (info.st_size <= 0) return MakeError(ErrorKind::kInvalid, "a segment cannot be empty");
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return MakeError(ErrorKind::kInvalid, "a peer's segment is not sealed against shrinking");
  }
  const auto bytes = static_cast<size_t>(info.st_size);
  void* base =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (base == MAP_FAILED)
    return SystemError("mmap of a segment of " + std::to_string(bytes) + " bytes");
  // A core dump would read every page of every rank's memory, also those that nobody has touched,
  // which it would make. Unchecked: a dump is then large.
  (void)::madvise(base, bytes, MADV_DONTDUMP);
  return Segment(std::make_shared<Mapping>(std::move(fd), static_cast<std::byte*>(base), bytes));
}

void Segment::PreferHugePages() const {
  if (mapping_) (void)::madvise(mapping_->data, mapping_->bytes, MADV_HUGEPAGE);
}

void Segment::KeepOnly(size_t bytes) {
  bytes = InPages(bytes);
  if (!mapping_ || mapping_.use_count() > 1 || bytes >= mapping_->bytes) return;
  if (::munmap(mapping_->data + bytes, mapping_->bytes - bytes) != 0) return;
  mapping_->bytes = bytes;
  if (bytes == 0) mapping_->fd = Fd();
}

void Segment::Forget(size_t bytes) {
  if (!mapping_ || mapping_.use_count() > 1) return;
  KeepOnly(bytes);
  // Unchecked: if it fails, the old memory stays mapped.
  if (mapping_->bytes > 0) {
    (void)::mmap(mapping_->data, mapping_->bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  }
  mapping_->fd = Fd();
}

std::byte* Segment::data() const { return mapping_ ? mapping_->data : nullptr; }

size_t Segment::size() const { return mapping_ ? mapping_->bytes : 0; }

int Segment::fd() const { return mapping_ ? mapping_->fd.get() : -1; }

bool Segment::Contains(const void* pointer) const {
  if (!mapping_) return false;
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const auto begin = reinterpret_cast<uintptr_t>(mapping_->data);
  return address >= begin && address - begin < mapping_->bytes;
}

}  // namespace horoacc
