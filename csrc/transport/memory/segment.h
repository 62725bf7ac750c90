#pragma once
// Memory that several ranks of one host share.
#include <cstddef>
#include <memory>

#include "base/result.h"
#include "transport/net/fd.h"

namespace horoacc {

/// A mapping of a memfd. Sparse: pages cost memory only once they are touched. Copies share the
/// mapping, which is unmapped with the last copy. (Ranks that are threads of one process share one,
/// so that the thread sanitizer sees their accesses at equal addresses.)
class Segment {
 public:
  Segment() = default;

  /// Creates a memfd of `bytes` (rounded up to pages), sealed against shrinking, and maps it.
  static Result<Segment> Create(const char* label, size_t bytes);
  /// Maps a descriptor that a peer sent; the size is read from it.
  static Result<Segment> Map(Fd fd);

  [[nodiscard]] std::byte* data() const;
  [[nodiscard]] size_t size() const;
  [[nodiscard]] int fd() const;
  [[nodiscard]] bool Contains(const void* pointer) const;
  /// Asks for huge pages, where the system's setting for shared memory lets programs ask: fewer
  /// misses of address translation, in units of 2 MiB. Unchecked: small pages do as well.
  void PreferHugePages() const;
  /// Unmaps everything behind the first `bytes` (whole pages), unless other copies share the
  /// mapping; closes the descriptor if nothing stays.
  void KeepOnly(size_t bytes);
  /// KeepOnly, and always releases the memory and the descriptor: the first `bytes` read as private
  /// zeroes.
  void Forget(size_t bytes);
  explicit operator bool() const { return mapping_ != nullptr; }

 private:
  struct Mapping;
  explicit Segment(std::shared_ptr<Mapping> mapping) : mapping_(std::move(mapping)) {}
  std::shared_ptr<Mapping> mapping_;
};

}  // namespace horoacc
