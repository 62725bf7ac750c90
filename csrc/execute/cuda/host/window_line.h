#pragma once
// The order of a GPU group's windows on one rank, and the slots of its fusion buffer: over a
// template, so that the runs and the models of their protocols (tests/cpp/model) share it.
#include <array>
#include <cstddef>
#include <cstdint>

namespace horoacc::cuda {

/// What a rank does with a window, in this order.
enum class WindowStage : uint8_t {
  kPack,    ///< copies its tensors to a slot of the fusion buffer
  kLaunch,  ///< enqueues its part of the reduction
  kUnpack,  ///< copies the slot to the tensors, once all ranks' GPUs have reduced
};

/// Windows, also of different buckets, come to each stage in the order of their numbers, which are
/// the same on all ranks: so all ranks use the same slots and launch in the same order. A window is
/// packed while others are being reduced, but into a slot only when the window that was there has
/// come to its last stage, for which no GPU uses that slot of any rank any more. (In mode NCCL no
/// other rank ever does, and each looks at its own.)
template <typename Count>
class BasicWindowLine {
 public:
  static constexpr uint32_t kSlots = 2;

  /// The first of so many numbers. To be called in the same order on all ranks.
  [[nodiscard]] Count Reserve(Count windows) {
    const auto first = static_cast<Count>(reserved_ + 1);
    reserved_ = static_cast<Count>(reserved_ + windows);
    return first;
  }
  [[nodiscard]] static uint32_t SlotOf(Count number) {
    return static_cast<uint32_t>(number % kSlots);
  }
  [[nodiscard]] bool MayCome(WindowStage stage, Count number) const {
    return came_[At(stage)] + 1U == number &&
           (stage != WindowStage::kPack || number <= came_[At(WindowStage::kUnpack)] + kSlots);
  }
  void Came(WindowStage stage, Count number) { came_[At(stage)] = number; }
  /// No window before this one is in the fusion buffer.
  [[nodiscard]] bool IsFirst(Count number) const { return MayCome(WindowStage::kUnpack, number); }
  /// For runs that use the whole buffer, one window at a time: to be called at the end of each.
  void CameThrough(Count number) { came_.fill(number); }

 private:
  static constexpr size_t At(WindowStage stage) { return static_cast<size_t>(stage); }

  Count reserved_ = 0;
  std::array<Count, 3> came_{};  ///< by stage: the last window
};

using WindowLine = BasicWindowLine<uint64_t>;

}  // namespace horoacc::cuda
