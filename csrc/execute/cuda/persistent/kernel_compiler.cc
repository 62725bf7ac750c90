#include "execute/cuda/persistent/kernel_compiler.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>

#include "execute/cuda/kernels/kernel_plan.h"
#include "execute/cuda/persistent/direct_lane.h"
#include "execute/cuda/persistent/kernel_shapes.h"
#include "execute/cuda/persistent/kernel_trace.h"
#include "execute/cuda/persistent/low_latency.h"

namespace horoacc::cuda {

using schedule::Goal;

namespace {

template <typename T>
uint64_t Append(KernelImage& image, const std::vector<T>& table) {
  static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= 8);
  const uint64_t offset = (image.size() + 7) / 8 * 8;
  image.resize(offset + table.size() * sizeof(T));
  if (!table.empty()) std::memcpy(image.data() + offset, table.data(), table.size() * sizeof(T));
  return offset;
}

KernelImage Finish(KernelImage image, KernelHeader& header) {
  header.bytes = image.size();
  std::memcpy(image.data(), &header, sizeof header);
  return image;
}

Error Refused(std::string why) {
  return MakeError(ErrorKind::kInvalid, "a persistent kernel: " + std::move(why));
}

Status CheckRequest(uint32_t ranks, const KernelRequest& request) {
  if (ranks == 0 || ranks > kMostKernelRanks) {
    return Refused("1 to " + std::to_string(kMostKernelRanks) + " ranks, not " +
                   std::to_string(ranks));
  }
  if (request.channels == 0 || request.depth < 2 || request.places == 0 ||
      request.chunk_bytes < kKernelGrain) {
    return Refused("it needs a channel, a place, a depth of 2 and chunks of 64 bytes at least");
  }
  return {};
}

/// Sets the header's fields for a reduction.
Status PlanReduction(const KernelRequest& request, KernelHeader& header) {
  if (IsComplex(request.type) && request.op == ReduceOp::kProduct)
    return Refused("no product of complex numbers");
  const void* source = nullptr;
  void* destination = nullptr;
  HA_ASSIGN(const ReducePlan plan, PlanReduce({.sources = {&source, 1},
                                               .destinations = {&destination, 1},
                                               .count = 0,
                                               .type = request.type,
                                               .op = request.op,
                                               .scale = request.scale}));
  header.type = request.type;
  header.op = request.op;
  header.scaled = plan.scaled;
  header.factors = plan.args.factors;
  return {};
}

/// Of the type of unfinished sums, in which the kernels accumulate.
uint64_t AccumulatorBytes(const KernelHeader& header) {
  const bool half = header.type == DType::kFloat16 || header.type == DType::kBFloat16;
  if (half) return sizeof(float);
  return header.scaled && !IsFloat(header.type) ? sizeof(int64_t) : SizeOf(header.type);
}

void LayOut(const KernelTrace& trace, KernelHeader& header) {
  uint64_t tails = 0;
  uint64_t heads = 0;
  uint64_t slots = 0;
  header.messages = 1;
  for (const TracedLink& link : trace.links()) {
    tails = std::max<uint64_t>(tails, link.tail + 1);
    heads = std::max<uint64_t>(heads, link.head + 1);
    if (link.longest == 0) continue;
    slots = std::max<uint64_t>(slots, link.slot + 1);
    header.messages = std::max(header.messages, link.longest);
  }
  header.heads = tails * header.channels * kCellBytes;
  header.ended = header.heads + heads * header.channels * kCellBytes;
  header.slots = header.ended + uint64_t{header.lanes} * header.channels * kCellBytes;
  const uint64_t slot = header.messages * header.stride;
  header.scratch = header.slots + slots * header.channels * header.depth * slot;
  const uint64_t places = uint64_t{header.channels} * header.places;
  header.apart = header.scratch + places * header.scratch_chunks * header.stride;
  bool apart = false;
  for (const auto& lane : trace.lanes()) {
    for (const TracedStep& step : lane) apart = apart || step.step.stored == Memory::kApart;
  }
  header.workspace_bytes = header.apart + (apart ? places * header.chunks * header.stride : 0);
}

void AppendSteps(const KernelTrace& trace, KernelImage& image, KernelHeader& header) {
  std::vector<KernelStep> steps;
  std::vector<KernelEnd> sources;
  std::vector<KernelEnd> targets;
  std::vector<uint32_t> lists;
  for (const auto& lane : trace.lanes()) {
    lists.push_back(static_cast<uint32_t>(steps.size()));
    for (const TracedStep& traced : lane) {
      KernelStep& step = steps.emplace_back(traced.step);
      step.first_source = static_cast<uint32_t>(sources.size());
      step.first_target = static_cast<uint32_t>(targets.size());
      step.sources = static_cast<uint32_t>(traced.sources.size());
      step.targets = static_cast<uint32_t>(traced.targets.size());
      for (const TracedStep::End& end : traced.sources) sources.push_back(end.end);
      for (const TracedStep::End& end : traced.targets) targets.push_back(end.end);
    }
  }
  lists.push_back(static_cast<uint32_t>(steps.size()));
  header.steps = Append(image, steps);
  header.sources = Append(image, sources);
  header.targets = Append(image, targets);
  header.lists = Append(image, lists);
}

}  // namespace

Result<KernelImage> CompileSchedule(const schedule::Schedule& schedule,
                                    const KernelRequest& request) {
  const schedule::Facts& facts = schedule.facts();
  HA_TRY(CheckRequest(facts.ranks, request));
  KernelHeader header;
  header.reduces = facts.goal == Goal::kAllreduce || facts.goal == Goal::kReduceScatter ||
                   facts.goal == Goal::kReduce;
  uint64_t unit = SizeOf(request.type);  // elements of the program that an element counts for
  header.type = DType::kUInt8;
  if (header.reduces) {
    HA_TRY(PlanReduction(request, header));
    unit = 1;
  }
  const uint64_t element = SizeOf(header.type);
  header.ranks = facts.ranks;
  header.lanes = facts.lanes;
  header.channels = request.channels;
  header.depth = request.depth;
  header.places = request.places;
  header.chunks = facts.chunks;
  const uint64_t accumulator = header.reduces ? AccumulatorBytes(header) : 1;
  const TraceRules rules{.reduces = header.reduces,
                         .apart = accumulator != element,
                         .scales = header.factors.prescales};
  HA_ASSIGN(const KernelTrace trace, KernelTrace::Of(schedule, rules));
  HA_ASSIGN(const KernelShapes shapes,
            KernelShapes::Of(schedule, request.count * unit, request.sizes, unit,
                             kKernelGrain / element));
  header.scratch_chunks = shapes.scratch_chunks;
  const uint64_t grain = kKernelGrain / element;
  const uint64_t most = std::max(request.chunk_bytes / element / grain * grain, grain);
  const uint64_t needed = (shapes.longest + grain - 1) / grain * grain;
  header.window_elements = std::clamp(needed, grain, most);
  header.windows = (shapes.longest + header.window_elements - 1) / header.window_elements;
  header.stride = RoundToGrain(header.window_elements * accumulator);
  header.input_bytes = shapes.most_input * element;
  header.output_bytes = shapes.most_output * element;
  LayOut(trace, header);
  KernelImage image(sizeof header);
  AppendSteps(trace, image, header);
  header.parts = Append(image, shapes.parts);
  header.kept = Append(image, shapes.kept);
  return Finish(std::move(image), header);
}

Result<KernelImage> CompileFixed(KernelKind kind, uint32_t ranks, const KernelRequest& request) {
  HA_TRY(CheckRequest(ranks, request));
  if (kind == KernelKind::kSchedule || !request.sizes.empty()) {
    return Refused("the fixed algorithms are allreduces");
  }
  KernelHeader header;
  HA_TRY(PlanReduction(request, header));
  header.kind = kind;
  header.ranks = ranks;
  header.channels = request.channels;
  header.window_elements = request.count;
  header.windows = request.count > 0 ? 1 : 0;
  const uint64_t element = SizeOf(request.type);
  header.input_bytes = header.output_bytes = request.count * element;
  if (kind == KernelKind::kDirect) {
    header.workspace_bytes = uint64_t{2} * ranks * header.channels * kCellBytes;
  } else {
    const uint64_t units = UnitsOf(request.count, element);
    const bool two = kind == KernelKind::kTwoShot;
    const uint64_t area = two ? 2 * UnitsOfPart(units, ranks) : units;
    const uint64_t words = area * WordsOfUnit(element) * ranks;
    header.workspace_bytes = RoundToGrain(2 * words * sizeof(uint64_t));
  }
  return Finish(KernelImage(sizeof header), header);
}

const KernelHeader& HeaderOf(const KernelImage& image) {
  return *reinterpret_cast<const KernelHeader*>(image.data());
}

}  // namespace horoacc::cuda
