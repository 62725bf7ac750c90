#pragma once
// A piece of memory that several ranks of one host see.
#include <cstddef>
#include <memory>

#include "base/result.h"
#include "transport/net/fd.h"

namespace horoacc {

/// A mapping of a memfd. Sparse: pages cost memory only once they are touched. Copies share the
/// mapping (ranks that are threads of one process use one mapping, so that the thread sanitizer
/// sees their accesses at equal addresses); it goes away with the last copy.
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
  /// Lets go of everything behind the first `bytes` (whole pages), addresses too, unless other
  /// copies share the mapping; of the descriptor as well if nothing stays.
  void KeepOnly(size_t bytes);
  /// The same, and of the memory and the descriptor in any case: who still looks at those bytes
  /// sees zeroes of his own.
  void Forget(size_t bytes);
  explicit operator bool() const { return mapping_ != nullptr; }

 private:
  struct Mapping;
  explicit Segment(std::shared_ptr<Mapping> mapping) : mapping_(std::move(mapping)) {}
  std::shared_ptr<Mapping> mapping_;
};

}  // namespace horoacc
