#pragma once
// Blocks of this rank's arena that peers may write.
#include <cstddef>
#include <mutex>
#include <vector>

namespace horoacc {

struct Job;

/// After an abort a stopped or slow peer may still write into blocks of the collective in flight:
/// freed blocks are kept in quarantine until every rank of the host has seen the abort or is dead.
/// Any thread.
class SharedBlocks {
 public:
  explicit SharedBlocks(const Job& job) : job_(job) {}

  [[nodiscard]] void* Allocate(size_t bytes);
  void Free(void* memory);
  /// Frees the blocks in quarantine if no peer can write into them any more.
  void EmptyQuarantine();
  /// The engine has ended: gives out no more blocks, and frees those in quarantine whatever the
  /// peers do.
  void End();

 private:
  [[nodiscard]] bool AllStopped() const;
  void FreeAll(std::vector<void*>& blocks) const;

  const Job& job_;
  std::mutex mutex_;
  std::vector<void*> quarantine_;
};

}  // namespace horoacc
