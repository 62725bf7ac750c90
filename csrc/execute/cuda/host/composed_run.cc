#include "execute/cuda/host/composed_run.h"

#include <algorithm>
#include <utility>

#include "execute/cuda/device/pinned_blocks.h"

namespace horoacc::cuda {
namespace {

constexpr uint64_t kPlaceGrain = 256;

bool IsMoreOf(const ReducePiece& one, const ReducePiece& other) {
  return one.type == other.type && one.op == other.op && one.scale == other.scale;
}

// The block may be used again once copies from and to it are done.
void RetireSums(Gpu& gpu, PinnedBlocks& blocks, std::byte* block) {
  GpuEvent to_host, to_device;
  if (auto copied = gpu.Record(gpu.to_host()); copied.ok()) to_host = std::move(copied).value();
  (void)gpu.Wait(gpu.to_device(), to_host).ok();
  if (auto copied = gpu.Record(gpu.to_device()); copied.ok()) to_device = std::move(copied).value();
  void* const last = to_device.get();
  blocks.Retire(block, GpuEvent(last, [to_host, to_device](void*) {}));
}

}  // namespace

bool ComposedRun::Fits(DType type, ReduceOp op, const Scale& scale, bool wide) {
  return !wide && RealOf(type) == type && CanReduce(type, op) && op != ReduceOp::kAdasum &&
         PartialTypeOf({.type = type, .op = op, .scale = scale}, wide) == type;
}

ComposedRun::ComposedRun(GpuGroup& group, std::vector<DeviceCall*> calls,
                         std::vector<ReducePiece> pieces, Rail rail)
    : GpuRun(group, std::move(calls)), pieces_(std::move(pieces)) {
  for (uint32_t k = 0; k < rail.count; ++k)
    parts_.emplace_back(pieces_, Rail{k, rail.count}, false);
  shown_at_.resize(rail.count);
  taken_at_.resize(rail.count);
  place_bytes_ = group.buffer_bytes() / (2 * kPlaces * rail.count) / kPlaceGrain * kPlaceGrain;
  uint64_t longest = 0;
  for (const RailPart& part : parts_) longest = std::max(longest, part.bytes());
  windows_ = (longest + place_bytes_ - 1) / place_bytes_;
  first_ = group.line().Reserve(windows_);
}

Result<std::unique_ptr<ComposedRun>> ComposedRun::Make(
    GpuGroup& group, std::vector<DeviceCall*> calls, std::vector<ReducePiece> pieces, Rail rail,
    std::optional<BetweenHosts::Surroundings> between) {
  const auto gpu = calls[0]->gpu();
  const auto blocks = calls[0]->blocks();
  std::unique_ptr<ComposedRun> made(
      new ComposedRun(group, std::move(calls), std::move(pieces), rail));
  if (!between) return made;
  between->take = [blocks](uint64_t bytes) { return blocks->Take(bytes); };
  between->retire = [gpu, blocks](std::byte* block) { RetireSums(*gpu, *blocks, block); };
  HA_ASSIGN(made->between_, BetweenHosts::Make(std::move(*between), made->OwnPart(), *made));
  return made;
}

Result<bool> ComposedRun::Go() {
  bool moved = false;
  if (!std::exchange(begun_, true)) {
    HA_TRY(AwaitTensors());
    for (const auto count : {&GpuPeerInfo::reduced, &GpuPeerInfo::stored}) {
      if (!IsRail() && windows_ > 0) Tell(count, windows_);
    }
  }
  if (IsRail() && !between_->run().complete()) {
    moved = between_->run().Advance();
    if (between_->run().failed()) return between_->run().failure();
  }
  for (const auto stage :
       {&ComposedRun::Take, &ComposedRun::Store, &ComposedRun::Sum, &ComposedRun::Show}) {
    HA_ASSIGN(const bool more, (this->*stage)());
    moved = moved || more;
  }
  if (!shown_.events.empty() || !summed_.events.empty() || !stored_.events.empty() ||
      !taken_.events.empty())
    Poll();
  if (taken_.done < windows_ || (IsRail() && !between_->run().complete())) return moved;
  HA_TRY(Complete());
  return true;
}

Status ComposedRun::Began(Stage& stage, void* stream, GpuEvent after) {
  HA_ASSIGN(GpuEvent event, group_.gpu().Record(stream));
  stage.events.emplace_back(std::move(event), std::move(after));
  ++stage.begun;
  return {};
}

Result<bool> ComposedRun::Ended(Stage& stage) {
  if (stage.events.empty()) return false;
  HA_ASSIGN(const bool done, group_.gpu().IsDone(stage.events.front().first));
  if (!done) return false;
  stage.events.pop_front();
  ++stage.done;
  return true;
}

std::byte* ComposedRun::Place(uint32_t rank, uint32_t rail, uint64_t window, bool result) const {
  const uint64_t place = (first_ + window) % kPlaces + (result ? kPlaces : 0);
  return group_.buffer(rank) + (place * parts_.size() + rail) * place_bytes_;
}

std::vector<ComposedRun::Section> ComposedRun::Cut(uint32_t rail, uint64_t window,
                                                   RailPart::Progress& progress) const {
  const uint64_t begin = window * place_bytes_;
  const uint64_t end = std::min(begin + place_bytes_, parts_[rail].bytes());
  std::vector<Section> sections;
  while (progress.at < end) {
    const RailPart::Slice slice = parts_[rail].Next(progress, end);
    sections.push_back({slice, slice.at - begin});
  }
  return sections;
}

// The place is free once all rails have added up the window that was in it.
Result<bool> ComposedRun::Show() {
  HA_ASSIGN(const bool moved, Ended(shown_));
  if (moved) Tell(&GpuPeerInfo::packed, shown_.done);
  const uint64_t window = shown_.begun;
  if (window == windows_) return moved;
  if (!IsFree(&GpuPeerInfo::reduced, window)) return moved;
  std::vector<ha_cuda_tensor> moves;
  for (uint32_t rail = 0; rail < parts_.size(); ++rail) {
    std::byte* const place = Place(group_.me(), rail, window, false);
    for (const auto& [slice, offset] : Cut(rail, window, shown_at_[rail])) {
      const auto* const input = static_cast<const std::byte*>(pieces_[slice.piece].input);
      moves.push_back({input + slice.offset, place + offset, slice.bytes});
    }
  }
  HA_TRY(group_.Copy(moves));
  HA_TRY(Began(shown_, group_.stream()));
  return true;
}

// The sums take the place of this rank's own input, which no other rank reads.
Result<bool> ComposedRun::Sum() {
  HA_ASSIGN(const bool moved, Ended(summed_));
  if (moved) Tell(&GpuPeerInfo::reduced, summed_.done);
  const uint64_t window = summed_.begun;
  if (!IsRail() || window == windows_ || !group_.AllHave(&GpuPeerInfo::packed, first_ + window))
    return moved;
  Gpu& gpu = group_.gpu();
  const uint64_t begin = Position(window);
  const uint64_t bytes = Position(window + 1) - begin;
  std::vector<std::byte*> sources;
  for (uint32_t rank = 0; rank < group_.ranks(); ++rank)
    sources.push_back(Place(rank, group_.me(), window, false));
  HA_TRY(Reduce(Cut(group_.me(), window, summed_at_), sources, false));
  HA_ASSIGN(GpuEvent reduced, group_.Record());
  HA_TRY(gpu.Wait(gpu.to_host(), reduced));
  if (bytes > 0)
    HA_TRY(gpu.Copy(gpu.to_host(), between_->sums() + begin, sources[group_.me()], bytes));
  HA_TRY(Began(summed_, gpu.to_host(), std::move(reduced)));
  return true;
}

Status ComposedRun::Leave(uint64_t end) {
  final_ = end;
  return {};
}

// The place is free once all ranks have the results of the window that was in it.
Result<bool> ComposedRun::Store() {
  HA_ASSIGN(const bool moved, Ended(stored_));
  if (moved) Tell(&GpuPeerInfo::stored, stored_.done);
  const uint64_t window = stored_.begun;
  if (window == summed_.done || Position(window + 1) > final_ ||
      !IsFree(&GpuPeerInfo::taken, window))
    return moved;
  Gpu& gpu = group_.gpu();
  const uint64_t begin = Position(window);
  const uint64_t bytes = Position(window + 1) - begin;
  std::byte* const place = Place(group_.me(), group_.me(), window, true);
  if (bytes > 0) HA_TRY(gpu.Copy(gpu.to_device(), place, between_->sums() + begin, bytes));
  HA_ASSIGN(GpuEvent copied, gpu.Record(gpu.to_device()));
  HA_TRY(gpu.Wait(group_.stream(), copied));
  HA_TRY(Reduce(Cut(group_.me(), window, stored_at_), {place}, true));
  HA_TRY(Began(stored_, group_.stream(), std::move(copied)));
  return true;
}

Result<bool> ComposedRun::Take() {
  HA_ASSIGN(const bool moved, Ended(taken_));
  if (moved) Tell(&GpuPeerInfo::taken, taken_.done);
  const uint64_t window = taken_.begun;
  if (window == shown_.begun || !group_.AllHave(&GpuPeerInfo::stored, first_ + window))
    return moved;
  std::vector<ha_cuda_tensor> moves;
  for (uint32_t rail = 0; rail < parts_.size(); ++rail) {
    const std::byte* const place = Place(rail, rail, window, true);
    for (const auto& [slice, offset] : Cut(rail, window, taken_at_[rail])) {
      auto* const output = static_cast<std::byte*>(pieces_[slice.piece].output);
      moves.push_back({place + offset, output + slice.offset, slice.bytes});
    }
  }
  HA_TRY(group_.Copy(moves));
  HA_TRY(Began(taken_, group_.stream()));
  return true;
}

// What lies between tensors goes with them. `sources` are places; the result takes this rank's.
Status ComposedRun::Reduce(const std::vector<Section>& sections,
                           const std::vector<std::byte*>& sources, bool finish) const {
  std::byte* const own = finish ? sources[0] : sources[group_.me()];
  for (size_t k = 0; k < sections.size();) {
    const ReducePiece& piece = pieces_[sections[k].slice.piece];
    const uint64_t begin = sections[k].offset;
    uint64_t end = begin;
    for (; k < sections.size() && IsMoreOf(pieces_[sections[k].slice.piece], piece); ++k)
      end = sections[k].offset + sections[k].slice.bytes;
    const Scale scale = finish ? Scale{1.0, piece.scale.post, piece.scale.divisor}
                               : Scale{piece.scale.pre, 1.0, 1.0};
    if (sources.size() == 1 && scale == Scale{}) continue;
    std::vector<const void*> from;
    for (const std::byte* source : sources) from.push_back(source + begin);
    void* const to = own + begin;
    HA_TRY(group_.Reduce(
        {from, {&to, 1}, (end - begin) / SizeOf(piece.type), piece.type, piece.op, scale},
        group_.stream()));
  }
  return {};
}

}  // namespace horoacc::cuda
