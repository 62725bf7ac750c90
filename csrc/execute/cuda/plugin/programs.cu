#include <cstring>
#include <string>

#include "execute/cuda/plugin/current_device.cuh"
#include "execute/cuda/plugin/kernel_launch.cuh"

namespace horoacc::cuda {
namespace {

Error Refused(std::string why) {
  return MakeError(ErrorKind::kUnsupported, "persistent kernels: " + std::move(why));
}

cudaError_t OrderAny(const KernelOrder& order) {
  const KernelHeader& header = order.launch.header;
  if (IsFloat(header.type)) return OrderFloats(order);
  return header.scaled ? OrderScaled(order) : OrderNumbers(order);
}

Status CheckProgram(const ha_cuda_program& program) {
  if (!IsProgram(program.image, program.bytes))
    return Refused("these bytes are no program of this build");
  const auto& header = *static_cast<const KernelHeader*>(program.image);
  if (program.rank >= static_cast<int>(header.ranks)) return Refused("there is no such rank");
  if (program.bytes > sizeof header && program.uploaded == nullptr)
    return Refused("the program is not on the GPU");
  if (!(program.seconds >= 0 && program.seconds < 1e9))
    return Refused("a launch cannot take that many seconds");
  if (program.watch->abort != 0) return Refused("they were aborted");
  return {};
}

void SetAddresses(const ha_cuda_program& program, KernelLaunch& launch) {
  for (uint32_t rank = 0; rank < launch.header.ranks; ++rank) {
    launch.call.input[rank] = static_cast<const char*>(program.inputs[rank]);
    launch.call.output[rank] = static_cast<char*>(program.outputs[rank]);
    launch.call.workspace[rank] = static_cast<char*>(program.workspaces[rank]);
  }
  launch.call.call = program.call;
}

}  // namespace

Status LaunchProgram(const ha_cuda_program& program, ha_cuda_watch* watch, const Place& place) {
  HA_TRY(CheckProgram(program));
  KernelLaunch launch{};
  std::memcpy(&launch.header, program.image, sizeof launch.header);
  if (launch.header.windows == 0) return {};
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  HA_TRY(Check(cudaStreamIsCapturing(place.stream, &capture), "cudaStreamIsCapturing"));
  if (capture != cudaStreamCaptureStatusNone) {
    return Refused("every launch has a number, so they cannot be captured into a CUDA graph");
  }
  launch.watch = {&watch->abort, reinterpret_cast<unsigned long long*>(&watch->report),
                  static_cast<unsigned long long>(program.seconds * 1e9)};
  launch.program = static_cast<const char*>(program.uploaded);
  launch.first_rank = program.rank < 0 ? 0 : static_cast<uint32_t>(program.rank);
  launch.here = program.rank < 0 ? launch.header.ranks : 1;
  SetAddresses(program, launch);
  Residency residency;
  HA_TRY(Check(OrderAny({launch, place, &residency}), "the launch of a persistent kernel"));
  if (residency.wanted <= residency.resident) return {};
  return Refused(std::to_string(residency.wanted) +
                 " blocks wait for each other, and this GPU holds " +
                 std::to_string(residency.resident) + " at once; use fewer channels");
}

}  // namespace horoacc::cuda
