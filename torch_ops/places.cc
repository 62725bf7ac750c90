#include "places.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace horoacc {

std::optional<c10::Stream> StreamOf(const at::Tensor& tensor) {
  if (!tensor.is_cuda()) return std::nullopt;
  return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(tensor.device());
}

ha_gpu GpuOf(const c10::Stream& stream) { return {stream.device_index(), stream.native_handle()}; }

}  // namespace horoacc
