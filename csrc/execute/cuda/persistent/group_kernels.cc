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

GroupKernels::GroupKernels(GpuGroup& gpu_group, std::shared_ptr<PinnedBlocks> blocks,
                           KernelRules rules)
    : gpu_group_(gpu_group),
      blocks_(std::move(blocks)),
      bytes_(rules.bytes),
      programs_(std::move(rules)) {
  std::byte* const block = blocks_->Take(sizeof(ha_cuda_watch));
  if (block != nullptr) watch_ = new (block) ha_cuda_watch{};
}

// Kernels may still look at it. A GPU that records nothing has failed before.
GroupKernels::~GroupKernels() {
  if (watch_ == nullptr) return;
  Result<GpuEvent> last = gpu_group_.gpu().Record(gpu_group_.stream());
  if (last.ok()) blocks_->Retire(reinterpret_cast<std::byte*>(watch_), std::move(last).value());
}

// Kernels look at their watch while they run.
Status GroupKernels::Check() const {
  if (watch_ == nullptr || !blocks_->IsPinned(reinterpret_cast<std::byte*>(watch_)))
    return MakeError(ErrorKind::kUnsupported, "no memory of the host that the GPU can reach");
  return programs_.Check();
}

std::byte* GroupKernels::memory(uint32_t index) const {
  return gpu_group_.buffer(index) + gpu_group_.buffer_bytes();
}

Status GroupKernels::Upload(const PlacedProgram& program) {
  const size_t bytes = program.image.size();
  std::byte* const block = blocks_->Take(bytes);
  if (block == nullptr) return MakeError(ErrorKind::kSystem, "no memory for a kernel's program");
  std::memcpy(block, program.image.data(), bytes);
  const Gpu& gpu = gpu_group_.gpu();
  HA_TRY(gpu.Copy(gpu_group_.stream(), memory(gpu_group_.me()) + program.uploaded, block, bytes));
  HA_ASSIGN(GpuEvent copied, gpu_group_.gpu().Record(gpu_group_.stream()));
  blocks_->Retire(block, std::move(copied));
  return {};
}

Result<bool> GroupKernels::Launch(const BucketRun& run) {
  HA_ASSIGN(PlacedProgram* const program, programs_.Find({run.type, run.op, run.scale, run.count}));
  if (program == nullptr) return false;
  if (program->calls == 0) HA_TRY(Upload(*program));
  std::vector<void*> places;
  std::vector<void*> workspaces;
  for (uint32_t r = 0; r < gpu_group_.ranks(); ++r) {
    places.push_back(gpu_group_.buffer(r) + run.offset);
    workspaces.push_back(memory(r) + program->workspace);
  }
  const ha_cuda_program call{.image = program->image.data(),
                             .bytes = program->image.size(),
                             .uploaded = memory(gpu_group_.me()) + program->uploaded,
                             .rank = static_cast<int>(gpu_group_.me()),
                             .inputs = places.data(),
                             .outputs = places.data(),
                             .workspaces = workspaces.data(),
                             .call = program->calls,
                             .seconds = 0,
                             .watch = watch_};
  HA_TRY(gpu_group_.gpu().Call(&ha_cuda_plugin::run_program, gpu_group_.stream(), &call));
  ++program->calls;
  return true;
}

Status GroupKernels::Outcome() const { return OutcomeOf(*watch_); }

void GroupKernels::Abort() const {
  if (watch_ != nullptr) AbortKernels(*watch_);
}

bool GroupKernels::AllHave(std::atomic<uint64_t> GpuPeerInfo::* count) const {
  for (uint32_t r = 0; r < gpu_group_.ranks(); ++r) {
    if ((gpu_group_.info(r).*count).load(std::memory_order_acquire) < renewals_) return false;
  }
  return true;
}

// Kernels write flags into the memory of others: what is cleared must not be in use on any rank,
// and not be used before it is cleared on all.
Result<bool> GroupKernels::Renew() {
  Gpu& gpu = gpu_group_.gpu();
  GpuPeerInfo& own = gpu_group_.info(gpu_group_.me());
  if (renewal_ == Renewal::kNone) {
    HA_ASSIGN(ended_, gpu.Record(gpu_group_.stream()));
    ++renewals_;
    renewal_ = Renewal::kDraining;
  }
  if (renewal_ == Renewal::kDraining) {
    HA_ASSIGN(const bool ended, gpu.IsDone(ended_));
    if (!ended) return false;
    own.drained.store(renewals_, std::memory_order_release);
    gpu_group_.RingOthers();
    renewal_ = Renewal::kDrained;
  }
  if (renewal_ == Renewal::kDrained) {
    if (!AllHave(&GpuPeerInfo::drained)) return false;
    HA_TRY(gpu.Call(&ha_cuda_plugin::zero, gpu_group_.stream(), memory(gpu_group_.me()), bytes_));
    HA_ASSIGN(ended_, gpu.Record(gpu_group_.stream()));
    renewal_ = Renewal::kClearing;
  }
  if (renewal_ == Renewal::kClearing) {
    HA_ASSIGN(const bool cleared, gpu.IsDone(ended_));
    if (!cleared) return false;
    own.cleared.store(renewals_, std::memory_order_release);
    gpu_group_.RingOthers();
    renewal_ = Renewal::kCleared;
  }
  if (!AllHave(&GpuPeerInfo::cleared)) return false;
  programs_.Clear();
  renewal_ = Renewal::kNone;
  return true;
}

}  // namespace horoacc::cuda
