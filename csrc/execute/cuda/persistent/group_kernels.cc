#include "execute/cuda/persistent/group_kernels.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "execute/cuda/persistent/kernel_outcome.h"

namespace horoacc::cuda {
namespace {

constexpr uint64_t kLeastBytes = uint64_t{4} << 20;
constexpr uint64_t kMostBytes = uint64_t{64} << 20;

}  // namespace

uint64_t GroupKernels::BytesBeside(uint64_t buffer_bytes) {
  return std::clamp(buffer_bytes, kLeastBytes, kMostBytes);
}

GroupKernels::GroupKernels(GpuGroup& group, std::shared_ptr<PinnedBlocks> blocks, KernelRules rules)
    : group_(group), blocks_(std::move(blocks)), bytes_(rules.bytes), programs_(std::move(rules)) {
  std::byte* const block = blocks_->Take(sizeof(ha_cuda_watch));
  if (block != nullptr) watch_ = new (block) ha_cuda_watch{};
}

// Kernels may still look at the watch. An earlier call has reported the error of a GPU that fails.
GroupKernels::~GroupKernels() {
  if (watch_ == nullptr) return;
  Result<GpuEvent> last = group_.RecordReduced();
  if (last.ok()) blocks_->Retire(reinterpret_cast<std::byte*>(watch_), std::move(last).value());
}

// Kernels look at their watch while they run.
Status GroupKernels::Check() const {
  if (watch_ == nullptr || !blocks_->IsPinned(reinterpret_cast<std::byte*>(watch_)))
    return MakeError(ErrorKind::kUnsupported, "no memory of the host that the GPU can reach");
  return programs_.Check();
}

std::byte* GroupKernels::memory(uint32_t index) const {
  return group_.buffer(index) + group_.buffer_bytes();
}

Status GroupKernels::Upload(const PlacedProgram& program) {
  const size_t bytes = program.image.size();
  std::byte* const block = blocks_->Take(bytes);
  if (block == nullptr) return MakeError(ErrorKind::kSystem, "no memory for a kernel's program");
  std::memcpy(block, program.image.data(), bytes);
  const Gpu& gpu = group_.gpu();
  HA_TRY(gpu.Copy(group_.reducing_stream(), memory(group_.me()) + program.uploaded, block, bytes));
  HA_ASSIGN(GpuEvent copied, group_.RecordReduced());
  blocks_->Retire(block, std::move(copied));
  return {};
}

Result<bool> GroupKernels::Launch(const BucketRun& run) {
  HA_ASSIGN(PlacedProgram* const program, programs_.Find({run.type, run.op, run.scale, run.count}));
  if (program == nullptr) return false;
  if (program->calls == 0) HA_TRY(Upload(*program));
  std::vector<void*> places;
  std::vector<void*> workspaces;
  for (uint32_t r = 0; r < group_.ranks(); ++r) {
    places.push_back(group_.buffer(r) + run.offset);
    workspaces.push_back(memory(r) + program->workspace);
  }
  const ha_cuda_program call{.image = program->image.data(),
                             .bytes = program->image.size(),
                             .uploaded = memory(group_.me()) + program->uploaded,
                             .rank = static_cast<int>(group_.me()),
                             .inputs = places.data(),
                             .outputs = places.data(),
                             .workspaces = workspaces.data(),
                             .call = program->calls,
                             .seconds = 0,
                             .watch = watch_};
  HA_TRY(group_.gpu().Call(&ha_cuda_plugin::run_program, group_.reducing_stream(), &call));
  ++program->calls;
  return true;
}

Status GroupKernels::Outcome() const { return OutcomeOf(*watch_); }

void GroupKernels::Abort() const {
  if (watch_ != nullptr) AbortKernels(*watch_);
}

// Kernels write flags into other ranks' memory: no rank may clear its memory before all ranks'
// kernels have ended, nor launch another kernel before all have cleared theirs.
Result<bool> GroupKernels::Renew() {
  Gpu& gpu = group_.gpu();
  if (renewal_ == Renewal::kNone) {
    HA_ASSIGN(ended_, group_.RecordReduced());
    ++renewals_;
    renewal_ = Renewal::kDraining;
  }
  if (renewal_ == Renewal::kDraining) {
    HA_ASSIGN(const bool ended, gpu.IsDone(ended_));
    if (!ended) return false;
    group_.Tell(&GpuPeerInfo::drained, renewals_);
    renewal_ = Renewal::kDrained;
  }
  if (renewal_ == Renewal::kDrained) {
    if (!group_.AllHave(&GpuPeerInfo::drained, renewals_)) return false;
    HA_TRY(gpu.Call(&ha_cuda_plugin::zero, group_.reducing_stream(), memory(group_.me()), bytes_));
    HA_ASSIGN(ended_, group_.RecordReduced());
    renewal_ = Renewal::kClearing;
  }
  if (renewal_ == Renewal::kClearing) {
    HA_ASSIGN(const bool cleared, gpu.IsDone(ended_));
    if (!cleared) return false;
    group_.Tell(&GpuPeerInfo::cleared, renewals_);
    renewal_ = Renewal::kCleared;
  }
  if (!group_.AllHave(&GpuPeerInfo::cleared, renewals_)) return false;
  programs_.Clear();
  renewal_ = Renewal::kNone;
  return true;
}

}  // namespace horoacc::cuda
