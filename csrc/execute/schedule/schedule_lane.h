#pragma once
// One lane of a schedule on this rank: a state machine that does one slice of one step at a time.
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "execute/kernels/combine.h"
#include "execute/schedule/payload.h"
#include "schedule/step.h"
#include "transport/data/data_links.h"

namespace horoacc {

/// A step with its links.
struct LaneStep {
  schedule::Step step;
  std::vector<ReceiveLink*> sources;  ///< in ascending place
  size_t own_position = 0;            ///< how many of them come before this rank
  std::vector<SendLink*> targets;
};

/// How messages are cut, the same at both ends.
struct Slicing {
  uint64_t slice_bytes = 0;
  uint32_t most_slices = 1;
  /// Of a message of that length: the length of its slices but for the last.
  [[nodiscard]] uint64_t LengthOfSlices(uint64_t length) const;
  [[nodiscard]] uint32_t CountOf(uint64_t length) const;
  /// Of all messages up to that length: the most slices, and the longest one's length.
  [[nodiscard]] uint32_t MostUpTo(uint64_t length) const;
  [[nodiscard]] uint64_t LongestUpTo(uint64_t length) const;
};

/// The state that the lanes of a run share.
struct LaneShared {
  explicit LaneShared(ChunkMap chunks)
      : map(std::move(chunks)), combiner(map.tensors(), map.partial_types()) {}
  LaneShared(const LaneShared&) = delete;
  LaneShared& operator=(const LaneShared&) = delete;

  const ChunkMap map;
  Combiner combiner;
  Slicing slicing;
  uint32_t depth = 1;
  uint32_t places = 1;
  uint32_t chunks = 0;          ///< of a window
  uint32_t scratch_chunks = 0;  ///< of this rank
  /// This rank has unfinished sums that the schedule stores in the output, and the run apart.
  bool keeps_apart = false;
  /// By place of the window: scratch, and those sums.
  std::vector<std::byte*> scratch, apart;
  /// By place and chunk, with `keeps_apart`: the output holds the result.
  std::vector<std::vector<uint8_t>> finished;
};

/// Whether the step's result is a sum that is not finished, to be stored.
[[nodiscard]] bool StoresPartial(const schedule::Step& step);

class Lane {
 public:
  explicit Lane(LaneShared& shared) : shared_(shared) {}
  void Add(LaneStep step);

  [[nodiscard]] uint64_t window() const { return window_; }
  [[nodiscard]] bool ended() const { return window_ == shared_.map.windows(); }
  /// At the first step of its window.
  [[nodiscard]] bool between_windows() const { return k_ == 0 && !begun_; }
  [[nodiscard]] uint32_t awaits() const {
    return k_ < steps_.size() && !begun_ ? steps_[k_].step.after : 0;
  }
  /// Everything that was sent in `window`, one of the last `places`, has been taken.
  [[nodiscard]] bool TakenOf(uint64_t window) const;

  /// "at step 3 of window 0 waits to receive".
  [[nodiscard]] std::string Waiting() const;

  /// One slice, or the end of a window. False: nothing can be done until a peer moves.
  Result<bool> Advance();

 private:
  /// The part of a list that the current slice is.
  struct SlicePieces {
    std::vector<Extent> extents;
    std::vector<std::span<std::byte>> pieces;
    std::vector<std::span<const std::byte>> readable;
  };

  [[nodiscard]] const LaneStep& current() const { return steps_[k_]; }
  void EndWindow();
  Status Begin();
  void List(schedule::Buffer buffer, uint32_t chunk, Form form, std::vector<Extent>& extents);
  [[nodiscard]] Form FormOfOwn() const;
  void CutSlice(const std::vector<Extent>& all, Form form, SlicePieces& slice) const;
  Result<bool> Receive();
  [[nodiscard]] bool HasRoom() const;
  Status Make();
  Status MakeIn(std::span<const Target> targets, const std::vector<Extent>& shape);
  Status Post();
  void EndSlice();

  LaneShared& shared_;
  std::vector<LaneStep> steps_;
  std::vector<SendLink*> senders_;           ///< of all steps, each once
  std::vector<std::vector<uint64_t>> sent_;  ///< by place of the window: posted on each of them
  uint64_t window_ = 0;
  size_t k_ = 0;

  // Of the current step.
  bool begun_ = false;
  bool made_ = false;  ///< this slice was received and its result made; it has to be sent
  bool held_ = false;  ///< the result lies in hold_, for no slot was free
  uint32_t slice_ = 0, slices_ = 0;
  uint64_t slice_length_ = 0;
  Form own_form_ = Form::kElements, received_form_ = Form::kElements;
  Form result_form_ = Form::kElements;
  bool passes_on_ = false;  ///< the own or stored chunks are sent from where they lie
  std::vector<Extent> own_, stored_;
  SlicePieces own_slice_, stored_slice_;
  std::vector<const Arrival*> arrivals_;
  std::vector<std::byte> hold_;
  std::vector<Operand> operands_;
};

}  // namespace horoacc
