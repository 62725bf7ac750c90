#pragma once
// Memory that two ranks of a host share for their data links: for each direction a ring of notes,
// which point to slots of the sender.
//
// A slot belongs to one link and is reused only after its message was taken, so a note never points
// to a slot that changes. The ring carries the notes of all links of a direction. The receiver
// empties it, whenever it polls, into queues of its own: no link waits for another one.
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace horoacc {

inline constexpr uint32_t kShmPieces = 12;  ///< a message of more pieces is copied to its slot
inline constexpr uint32_t kShmNotes = 512;

/// In the sender's memory. Offsets are from the beginning of that memory.
struct alignas(64) ShmSlot {
  /// The number + 1 of the last message taken from this slot; written by the receiver.
  std::atomic<uint64_t> taken{0};

  // The sender writes these while the slot is free.
  alignas(64) uint64_t sequence = 0;
  uint32_t set = 0;
  uint32_t channel = 0;
  uint64_t number = 0;
  uint64_t bytes = 0;
  uint32_t pieces = 0;
  uint64_t offset[kShmPieces]{};
  uint64_t length[kShmPieces]{};
};

/// In the control segment. Zeros are an empty ring.
struct ShmRing {
  alignas(64) std::atomic<uint64_t> written{0};  ///< notes that the sender has written
  alignas(64) std::atomic<uint64_t> read{0};     ///< notes that the receiver has read
  alignas(64) uint64_t notes[kShmNotes]{};       ///< offset of a ShmSlot
};

}  // namespace horoacc
