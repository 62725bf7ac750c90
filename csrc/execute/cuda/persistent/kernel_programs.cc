#include "execute/cuda/persistent/kernel_programs.h"

#include <algorithm>
#include <utility>

#include "schedule/algorithms.h"

namespace horoacc::cuda {
namespace {

constexpr uint64_t kAlignment = 512;
constexpr uint64_t kBytesOfBlock = 2048;  // of small messages, at least: more blocks would be idle

uint64_t Aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

uint64_t RoomFor(const KernelImage& image) {
  return Aligned(HeaderOf(image).workspace_bytes) + Aligned(image.size());
}

}  // namespace

Result<KernelImage> KernelPrograms::CompileForced(const KernelRequest& request) const {
  HA_ASSIGN(const schedule::Algorithm* const algorithm, schedule::FindAlgorithm(rules_.algorithm));
  const auto made = algorithm->make({.topology = schedule::Topology::Equal(1, rules_.ranks)});
  const uint32_t lanes = made->facts().lanes;
  if (lanes > rules_.blocks) {
    return MakeError(ErrorKind::kConfig, "setting 'algorithm' cannot be '" + rules_.algorithm +
                                             "' in kernels: it has " + std::to_string(lanes) +
                                             " lanes, and a rank " + std::to_string(rules_.blocks) +
                                             " blocks");
  }
  KernelRequest fitting = request;
  fitting.channels = rules_.blocks / lanes;
  for (;; fitting.channels = std::max(fitting.channels / 2, 1U), fitting.chunk_bytes /= 2) {
    HA_ASSIGN(KernelImage image, CompileSchedule(*made, fitting));
    if (RoomFor(image) <= rules_.bytes || fitting.chunk_bytes <= kKernelGrain) return image;
  }
}

Result<KernelImage> KernelPrograms::Compile(const KernelJob& job) const {
  KernelRequest request{.type = job.type, .op = job.op, .scale = job.scale, .count = job.count};
  if (!rules_.algorithm.empty()) return CompileForced(request);
  const uint64_t bytes = job.count * SizeOf(job.type);
  if (bytes <= kMostTwoShot) {
    request.channels =
        static_cast<uint32_t>(std::clamp<uint64_t>(bytes / kBytesOfBlock, 1, rules_.blocks));
    const KernelKind kind = bytes <= kMostOneShot ? KernelKind::kOneShot : KernelKind::kTwoShot;
    HA_ASSIGN(KernelImage image, CompileFixed(kind, rules_.ranks, request));
    if (RoomFor(image) <= rules_.bytes) return image;
  }
  request.channels = rules_.blocks;
  return CompileFixed(KernelKind::kDirect, rules_.ranks, request);
}

Result<PlacedProgram*> KernelPrograms::Find(const KernelJob& job) {
  const auto found = std::ranges::find(placed_, job, &PlacedProgram::job);
  if (found != placed_.end()) {
    placed_.splice(placed_.begin(), placed_, found);
    return &placed_.front();
  }
  HA_ASSIGN(KernelImage image, Compile(job));
  const uint64_t room = RoomFor(image);
  if (room > rules_.bytes) {
    return MakeError(ErrorKind::kConfig, "a program of persistent kernels needs " +
                                             std::to_string(room) + " bytes, and there are " +
                                             std::to_string(rules_.bytes));
  }
  if (end_ + room > rules_.bytes) return nullptr;
  const uint64_t workspace = end_;
  end_ += room;
  const uint64_t uploaded = workspace + Aligned(HeaderOf(image).workspace_bytes);
  return &placed_.emplace_front(PlacedProgram{job, std::move(image), workspace, uploaded, 0});
}

Status KernelPrograms::Check() const {
  if (rules_.algorithm.empty()) return {};
  HA_TRY(CompileForced({.count = 1}));
  return {};
}

void KernelPrograms::Clear() {
  placed_.clear();
  end_ = 0;
}

}  // namespace horoacc::cuda
