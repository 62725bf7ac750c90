#pragma once
// One decision while it runs: a state machine that never blocks, so that one thread can drive
// several process sets and a slow peer in one of them does not hold up the others.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/fault.h"
#include "base/result.h"
#include "execute/shared_memory/exec_slot.h"
#include "transport/memory/arena.h"

namespace horoacc {

/// The parts of a process set on this host that an execution needs.
struct SetContext {
  uint32_t me = 0;  ///< this rank's index in the set
  uint32_t ranks = 0;
  std::vector<std::byte*> memory;  ///< by index: base of the rank's memory, mapped here
  /// Indices of the ranks that take part, ascending: all of them, but for those that have joined.
  std::vector<uint32_t> present;
  /// Read in the place of the others' inputs: as long as the longest tensor. Null if all take part.
  std::shared_ptr<const std::byte> zeros;
  Arena* staging = nullptr;                 ///< this rank's own memory, for window rings
  std::function<void(void*)> free_staging;  ///< keeps a block that a slow peer might still write
  uint64_t window_bytes = 0;
  uint32_t window_depth = 0;
  FaultPoints* faults = nullptr;  ///< null: none
  /// Tells the set's other ranks that a counter has moved; `work`: they must take part.
  std::function<void(bool work)> ring_others;

  [[nodiscard]] bool IsPresent(uint32_t index) const {
    return present.size() == ranks || std::ranges::binary_search(present, index);
  }
};

/// One tensor of a reduction, with every rank's pointers where they are shared.
struct ReducePiece {
  DType type = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  Scale scale;
  uint64_t count = 0;
  /// Only if every rank's memory is shared: sources by index, destinations of the ranks that take
  /// part. They lie in the ReduceList.
  const void** sources = nullptr;
  void** destinations = nullptr;
  const void* input = nullptr;  ///< this rank's own memory, for the window paths
  void* output = nullptr;
  [[nodiscard]] uint64_t bytes() const { return count * SizeOf(type); }
};

/// The tensors of a bucket, and room for the pointers of all.
class ReduceList {
 public:
  std::vector<ReducePiece> pieces;
  /// So many pointers, which stay where they are.
  [[nodiscard]] void** MakePointers(size_t count) {
    if (count > room_.size()) {
      const size_t made = std::max(count, 2 * made_);  // a bucket has one tensor or many
      room_ = {pointers_.emplace_back(std::make_unique<void*[]>(made)).get(), made};
      made_ = made;
    }
    void** const taken = room_.data();
    room_ = room_.subspan(count);
    return taken;
  }

 private:
  std::vector<std::unique_ptr<void*[]>> pointers_;
  std::span<void*> room_;  ///< what is left of the last of them
  size_t made_ = 0;
};

class Execution {
 public:
  virtual ~Execution() = default;
  /// Does a bounded piece of work. False: nothing could be done until a peer moves.
  virtual bool Advance() = 0;
  /// This rank's outputs are valid, and no peer touches its inputs any more.
  [[nodiscard]] virtual bool complete() const = 0;
  /// Later decisions of the process set may begin, though it is not complete.
  [[nodiscard]] virtual bool overlaps() const { return false; }
  /// No peer needs anything of this rank's part any more; the slot is free as far as it goes.
  [[nodiscard]] virtual bool finished() const { return complete(); }
  /// The collective cannot go on on any rank.
  [[nodiscard]] virtual bool failed() const { return false; }
  /// The outcome of its calls once it is complete: an error if the ranks agree that they cannot.
  [[nodiscard]] virtual Status outcome() const { return {}; }
  /// Of a run that hosts begin without knowing of each other: all have; and: it is dropped, and its
  /// calls have no outcome.
  [[nodiscard]] virtual bool settled() const { return true; }
  [[nodiscard]] virtual bool dropped() const { return false; }
  /// Why, if it failed: most need shared memory for staging, and nothing else.
  [[nodiscard]] virtual Error failure() const {
    return MakeError(ErrorKind::kSystem, "shared memory is exhausted: no room for window rings");
  }
};

}  // namespace horoacc
