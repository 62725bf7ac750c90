#include "core_tensor.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <cstring>

#include "torch_versions.h"

namespace horoacc {

std::optional<c10::Stream> StreamOf(const at::Tensor& tensor) {
  if (!tensor.is_cuda()) return std::nullopt;
  return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(tensor.device());
}

void* HandleOf(const c10::Stream& stream) {
#if HOROACC_TORCH_BEFORE(11)
  // CUDAStream, whose header needs CUDA's, is a Stream and nothing else.
  constexpr const char* kStream = "_ZNK3c104cuda10CUDAStream6streamEv";
  void* const cuda = dlopen("libc10_cuda.so", RTLD_NOW | RTLD_NOLOAD);
  TORCH_CHECK(cuda != nullptr, "this torch is without CUDA");
  const auto find = reinterpret_cast<void* (*)(const c10::Stream*)>(dlsym(cuda, kStream));
  dlclose(cuda);  // torch keeps it
  TORCH_CHECK(find != nullptr, "this torch has no ", kStream);
  return find(&stream);
#else
  return stream.native_handle();
#endif
}

ha_gpu GpuOf(const c10::Stream& stream) { return {stream.device_index(), HandleOf(stream)}; }

int32_t CoreType(at::ScalarType type) {
  switch (type) {
    case at::kBool:
      return HA_BOOL;
    case at::kByte:
      return HA_UINT8;
    case at::kChar:
      return HA_INT8;
    case at::kShort:
      return HA_INT16;
    case at::kInt:
      return HA_INT32;
    case at::kLong:
      return HA_INT64;
    case at::kHalf:
      return HA_FLOAT16;
    case at::kBFloat16:
      return HA_BFLOAT16;
    case at::kFloat:
      return HA_FLOAT32;
    case at::kDouble:
      return HA_FLOAT64;
    case at::kComplexFloat:
      return HA_COMPLEX64;
    case at::kComplexDouble:
      return HA_COMPLEX128;
    default:
      return -1;
  }
}

Moved MovedAs(at::ScalarType type) {
  const int32_t known = CoreType(type);
  if (known >= 0) return {known, 1};
  return {HA_UINT8, static_cast<int64_t>(c10::elementSize(type))};
}

at::Tensor PartOf(ha_engine* engine, ha_handle handle, size_t member, size_t first,
                  at::IntArrayRef shape, const at::TensorOptions& options) {
  ha_output result{};
  TORCH_CHECK(ha_result(engine, handle, member, &result, nullptr) == HA_OK, "no result");
  const bool on_gpu = result.on_gpu != 0;
  const at::Tensor part = at::empty(shape, on_gpu ? options : options.device(at::kCPU));
  if (part.nbytes() == 0) return part.to(options.device());
  if (on_gpu) {
    ha_error error{};
    TORCH_CHECK(ha_copy_result(engine, handle, member, first, part.nbytes(),
                               part.mutable_data_ptr(), HandleOf(*StreamOf(part)), &error) == HA_OK,
                error.message);
    return part;
  }
  std::memcpy(part.mutable_data_ptr(), static_cast<const std::byte*>(result.data) + first,
              part.nbytes());
  return part.to(options.device());
}

}  // namespace horoacc
