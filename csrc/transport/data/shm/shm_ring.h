#pragma once
// What two ranks of a host share for their data links: a ring of notes for each direction, and the
// sender's slots, to which the notes point.
//
// A slot belongs to one link and is used again only when its message was taken, so a note never
// points to a slot that changes. The ring carries the notes of all links of a direction. The
// receiver empties it at every look, into queues of its own: no link waits for another one.
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace horoacc {

inline constexpr uint32_t kShmPieces = 12;  ///< a message of more is copied to its slot
inline constexpr uint32_t kShmNotes = 512;

/// In the sender's memory. Offsets are from the beginning of that memory.
struct alignas(64) ShmSlot {
  /// Of the message that was last taken from here, the number + 1; the receiver's to write.
  std::atomic<uint64_t> taken{0};

  // The sender's to write, while nothing is in the slot.
  alignas(64) uint64_t sequence = 0;
  uint32_t set = 0;
  uint32_t channel = 0;
  uint64_t number = 0;
  uint64_t bytes = 0;
  uint32_t pieces = 0;
  uint64_t offset[kShmPieces]{};
  uint64_t length[kShmPieces]{};
};

/// On the control segment. Zeros are an empty ring.
struct ShmRing {
  alignas(64) std::atomic<uint64_t> written{0};  ///< notes, by the sender
  alignas(64) std::atomic<uint64_t> read{0};     ///< by the receiver
  alignas(64) uint64_t notes[kShmNotes]{};       ///< offset of a ShmSlot
};

}  // namespace horoacc
