#pragma once
// The program of a persistent kernel (mode K), as one block of plain data: made by the host
// (kernel_compiler.h), copied to the GPU as it is, and read by kernels or, in tests, by threads of
// the host.
//
// It has no pointers, so all ranks make the same program, on whichever GPU they are. KernelCall has
// the data that change from call to call.
#include <cstddef>
#include <cstdint>

#include "base/device.h"
#include "base/dtype.h"
#include "execute/cuda/kernels/scale_one.h"

namespace horoacc::cuda {

inline constexpr uint32_t kMostKernelRanks = 64;
inline constexpr uint32_t kProgramMagic = 0x48414b31;
/// The distance between flags, so that no two lie in one line of a GPU's caches.
inline constexpr uint64_t kCellBytes = 128;
inline constexpr uint64_t kKernelGrain = 64;  ///< cuts are at multiples of so many bytes

HA_INLINE uint64_t RoundToGrain(uint64_t bytes) {
  return (bytes + kKernelGrain - 1) / kKernelGrain * kKernelGrain;
}

enum class KernelKind : uint8_t {
  kSchedule,  ///< interprets steps
  kOneShot,   ///< low latency: everything to everybody, in words that carry their flag
  kTwoShot,   ///< low latency: parts to their owners and results to everybody, in such words
  kDirect,    ///< owners read all inputs and write all outputs where they lie
};

/// The memory from which a step reads elements, or to which it writes them.
enum class Memory : uint8_t { kNone, kInput, kOutput, kScratch, kApart, kSlot };

enum class Action : uint8_t {
  kNothing,  ///< peers read the own chunks where they lie
  kCopy,     ///< the own chunks, or the received ones, as they are
  kCombine,  ///< a reduction, or one operand that is scaled or changes its type
};

enum KernelStepFlag : uint8_t {
  kOwnPartial = 1,  ///< own is an unfinished sum, in the accumulator's type
  kOwnRaw = 2,      ///< own is an input, still without the factor before the sum
  kReceivedPartial = 4,
  kReceivedRaw = 8,
  kResultPartial = 16,
};

/// A step of one rank's lane (schedule/step.h), with all data that do not depend on the call. Its
/// sources are in ascending rank, and `own_position` of them come before this rank.
struct KernelStep {
  Action action = Action::kNothing;
  uint8_t flags = 0;
  Memory own = Memory::kNone;
  Memory stored = Memory::kNone;
  uint32_t own_chunk = 0;
  uint32_t stored_chunk = 0;
  uint32_t count = 0;  ///< chunks in a row, cyclic
  uint32_t own_position = 0;
  uint32_t sources = 0, first_source = 0;
  uint32_t targets = 0, first_target = 0;
  uint32_t after = 0;  ///< lanes that must have ended this window
};

/// One end of a link, for one message of every window. Cells and slots are numbered within the
/// memory of the rank that they lie with: `tail` with the receiver, `head` with the sender.
struct KernelEnd {
  uint32_t peer = 0;
  uint32_t tail = 0;              ///< counts posted messages
  uint32_t head = 0;              ///< counts taken messages
  uint32_t slot = 0;              ///< the link's first slot, with the receiver; counted in slots
  uint32_t ordinal = 0;           ///< of this message among those of a window
  uint32_t per_window = 0;        ///< messages of the link in a window
  Memory memory = Memory::kSlot;  ///< where the message lies: with the sender, but for kSlot
  uint32_t chunk = 0;             ///< its first chunk there
};

/// The elements of a buffer that form a chunk in all windows.
struct KernelPart {
  uint64_t first = 0;
  uint64_t count = 0;
};

/// The first bytes of a program. Offsets of tables count from here; those of memory from the start
/// of a rank's workspace, which is laid out alike on all ranks.
struct KernelHeader {
  uint32_t magic = kProgramMagic;
  KernelKind kind = KernelKind::kSchedule;
  DType type = DType::kFloat32;  ///< uint8 where nothing is reduced: elements are bytes then
  ReduceOp op = ReduceOp::kSum;
  bool reduces = true;
  bool scaled = false;
  uint64_t bytes = 0;  ///< of the program
  uint32_t ranks = 1;
  uint32_t lanes = 1;
  uint32_t channels = 1;  ///< that run windows in turn; each has all lanes
  uint32_t depth = 2;     ///< slots of a link
  uint32_t places = 2;    ///< windows of a channel that may have memory at a time
  uint32_t chunks = 1;
  uint32_t scratch_chunks = 0;  ///< the most that a rank has
  uint32_t messages = 1;        ///< chunks of the longest message in a slot
  uint64_t windows = 0;
  uint64_t window_elements = 0;  ///< of a chunk
  uint64_t stride = 0;           ///< bytes of a chunk in slots and scratch
  Factors factors{};
  uint64_t steps = 0, sources = 0, targets = 0, lists = 0, parts = 0, kept = 0;  ///< tables
  uint64_t heads = 0, ended = 0, slots = 0, scratch = 0, apart = 0, words = 0;   ///< memory
  uint64_t workspace_bytes = 0;                                                  ///< of a rank
  uint64_t input_bytes = 0, output_bytes = 0;  ///< of the rank that has most
};

/// Whether these bytes are a program of this build.
[[nodiscard]] inline bool IsProgram(const void* image, size_t bytes) {
  const auto* header = static_cast<const KernelHeader*>(image);
  return image != nullptr && bytes >= sizeof(KernelHeader) && header->magic == kProgramMagic &&
         header->bytes == bytes && header->ranks > 0 && header->ranks <= kMostKernelRanks;
}

/// A window's number, and its number among its channel's.
struct WindowPlace {
  uint64_t window = 0;
  uint64_t turn = 0;
};

/// A program in memory of the host or the GPU.
class KernelProgram {
 public:
  HA_INLINE KernelProgram(const KernelHeader& header, const char* base)
      : header_(header), base_(base) {}

  [[nodiscard]] HA_INLINE const KernelHeader& header() const { return header_; }
  [[nodiscard]] HA_INLINE uint32_t steps(uint32_t rank, uint32_t lane) const {
    return list(rank, lane)[1] - list(rank, lane)[0];
  }
  [[nodiscard]] HA_INLINE const KernelStep& step(uint32_t rank, uint32_t lane, uint32_t k) const {
    return At<KernelStep>(header_.steps)[list(rank, lane)[0] + k];
  }
  [[nodiscard]] HA_INLINE const KernelEnd& source(uint32_t index) const {
    return At<KernelEnd>(header_.sources)[index];
  }
  [[nodiscard]] HA_INLINE const KernelEnd& target(uint32_t index) const {
    return At<KernelEnd>(header_.targets)[index];
  }
  /// Of kInput and kOutput.
  [[nodiscard]] HA_INLINE const KernelPart& part(uint32_t rank, Memory memory,
                                                 uint32_t chunk) const {
    const uint32_t row = 2 * rank + (memory == Memory::kInput ? 0 : 1);
    return At<KernelPart>(header_.parts)[row * header_.chunks + chunk];
  }
  /// Elements of a chunk of scratch in all windows.
  [[nodiscard]] HA_INLINE uint64_t kept(uint32_t rank, uint32_t chunk) const {
    return At<uint64_t>(header_.kept)[rank * header_.scratch_chunks + chunk];
  }
  /// Turns of a channel: it runs the windows channel, channel + channels, ...
  [[nodiscard]] HA_INLINE uint64_t turns(uint32_t channel) const {
    const uint64_t left = header_.windows - channel;
    return header_.windows <= channel ? 0 : (left + header_.channels - 1) / header_.channels;
  }

 private:
  template <typename T>
  [[nodiscard]] HA_INLINE const T* At(uint64_t offset) const {
    return reinterpret_cast<const T*>(base_ + offset);
  }
  [[nodiscard]] HA_INLINE const uint32_t* list(uint32_t rank, uint32_t lane) const {
    return At<uint32_t>(header_.lists) + rank * header_.lanes + lane;
  }

  const KernelHeader& header_;
  const char* base_;
};

/// One call of a program: the same on all ranks but for the addresses, which are those of the
/// ranks' memory on this GPU.
struct KernelCall {
  const char* input[kMostKernelRanks];
  char* output[kMostKernelRanks];
  char* workspace[kMostKernelRanks];
  uint64_t call;  ///< of this program: 0, 1, ...; flags count on from call to call
};

}  // namespace horoacc::cuda
