#include "execute/cuda/host/exchange_run.h"

#include <algorithm>
#include <utility>

namespace horoacc::cuda {

ExchangeRun::ExchangeRun(GpuGroup& group, std::vector<DeviceCall*> calls,
                         std::vector<ExchangePiece> pieces)
    : GpuRun(group, std::move(calls)), pieces_(std::move(pieces)) {
  for (size_t p = 0; p < pieces_.size(); ++p) {
    const uint64_t longest = std::ranges::max(pieces_[p].bytes);
    for (uint64_t first = 0; first < longest; first += group_.buffer_bytes())
      windows_.push_back({p, first, std::min(first + group_.buffer_bytes(), longest)});
  }
  number_ = group_.line().Reserve(windows_.size());
}

Result<bool> ExchangeRun::Go() {
  switch (step_) {
    case Step::kShow:
      if (windows_.empty()) {
        HA_TRY(Complete());
        return true;
      }
      if (!group_.line().IsFirst(number_)) return false;
      HA_TRY(Show());
      step_ = Step::kShown;
      return true;
    case Step::kShown: {
      HA_ASSIGN(const bool told, TellBehind(ended_, &GpuPeerInfo::packed, number_));
      if (told) step_ = Step::kTake;
      return told;
    }
    case Step::kTake:
      if (!group_.AllHave(&GpuPeerInfo::packed, number_)) return false;
      HA_TRY(Take());
      step_ = Step::kTaken;
      return true;
    case Step::kTaken: {
      HA_ASSIGN(const bool told, TellBehind(ended_, &GpuPeerInfo::reduced, number_));
      if (told) step_ = Step::kLeave;
      return told;
    }
    default:
      if (!group_.AllHave(&GpuPeerInfo::reduced, number_)) return false;
      step_ = Step::kShow;
      group_.line().CameThrough(number_++);
      if (++window_ == windows_.size()) HA_TRY(Complete());
      return true;
  }
}

Status ExchangeRun::Show() {
  if (window_ == 0) HA_TRY(AwaitTensors());
  const Window& window = windows_[window_];
  const ExchangePiece& piece = pieces_[window.piece];
  const uint64_t last = std::min(window.last, piece.bytes[group_.me()]);
  if (window.first < last) {
    HA_TRY(group_.Copy(
        {{piece.input + window.first, group_.buffer(group_.me()), last - window.first}}));
  }
  HA_ASSIGN(ended_, group_.Record());
  return {};
}

Status ExchangeRun::Take() {
  const Window& window = windows_[window_];
  const ExchangePiece& piece = pieces_[window.piece];
  std::vector<ha_cuda_tensor> moves;
  for (const ExchangePiece::Copy& copy : piece.copies) {
    const uint64_t first = std::max(copy.from, window.first);
    const uint64_t last = std::min(copy.from + copy.bytes, window.last);
    if (first >= last) continue;
    moves.push_back({group_.buffer(copy.source) + (first - window.first),
                     copy.to + (first - copy.from), last - first});
  }
  HA_TRY(group_.Copy(moves));
  for (const ExchangePiece::Shard& shard : piece.shards) {
    const uint64_t element = SizeOf(shard.type);
    const uint64_t first = std::max(shard.first * element, window.first);
    const uint64_t last = std::min(shard.last * element, window.last);
    if (first >= last) continue;
    std::vector<const void*> sources;
    for (uint32_t r = 0; r < group_.ranks(); ++r)
      sources.push_back(group_.buffer(r) + (first - window.first));
    void* const to = shard.to + (first - shard.first * element);
    HA_TRY(group_.Reduce(
        {sources, {&to, 1}, (last - first) / element, shard.type, shard.op, shard.scale},
        group_.stream()));
  }
  HA_ASSIGN(ended_, group_.Record());
  return {};
}

}  // namespace horoacc::cuda
