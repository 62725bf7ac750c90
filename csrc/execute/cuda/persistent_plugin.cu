// The plug-in's second entry: persistent kernels (mode K) behind the C contract.
#include <memory>

#include "execute/cuda/guarded.cuh"
#include "execute/cuda/persistent.cuh"

namespace horoacc::cuda {
namespace {

Persistent& Of(void* self) { return *static_cast<Persistent*>(self); }

int Create(void** self, int device, const void* program, size_t bytes, int rank,
           ha_cuda_error* error) {
  return Guarded(error, [&]() -> Status {
    auto created = std::make_unique<Persistent>(device, rank);
    HA_TRY(created->Open(program, bytes));
    *self = created.release();
    return {};
  });
}

void Destroy(void* self) { const std::unique_ptr<Persistent> gone(&Of(self)); }

int Export(void* self, ha_cuda_kernel_memory* memory, ha_cuda_error* error) {
  return Guarded(error, [&] { return Of(self).Export(memory); });
}

int Import(void* self, const ha_cuda_kernel_memory* memories, ha_cuda_error* error) {
  return Guarded(error, [&] { return Of(self).Import(memories); });
}

int Buffers(void* self, void** input, void** output, ha_cuda_error* error) {
  return Guarded(error, [&] { return Of(self).Buffers(input, output); });
}

int Launch(void* self, void* stream, const void* const* inputs, void* const* outputs,
           double seconds, ha_cuda_error* error) {
  return Guarded(error, [&] {
    return Of(self).Launch(static_cast<cudaStream_t>(stream), inputs, outputs, seconds);
  });
}

void Abort(void* self) { Of(self).Abort(); }

int Outcome(void* self, ha_cuda_error* error) {
  return Guarded(error, [&] { return Of(self).Outcome(); });
}

constexpr ha_cuda_kernels kKernels = {
    HA_CUDA_KERNELS_VERSION, Create, Destroy, Export, Import, Buffers, Launch, Abort, Outcome};

}  // namespace
}  // namespace horoacc::cuda

extern "C" __attribute__((visibility("default"))) const ha_cuda_kernels* horoacc_cuda_kernels_v1() {
  return &horoacc::cuda::kKernels;
}
