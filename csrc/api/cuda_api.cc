// The C contract's question about GPUs: do the kernels work here, and if not, why?
#include "api/horoacc.h"
#include "api/report.h"
#include "execute/cuda/cuda_library.h"

int ha_check_cuda(const char* plugin, int device, ha_error* error) {
  return horoacc::Guarded(error, [&] {
    const auto loaded = horoacc::cuda::LoadCudaPlugin({.plugin = plugin});
    if (!loaded.ok()) return horoacc::Report(loaded.error(), error);
    void* opened = nullptr;
    ha_cuda_error failure{};
    if (loaded.value()->open(&opened, device, &failure) != 0) {
      const auto what = "GPU " + std::to_string(device) + ": " + failure.message;
      return horoacc::Report(horoacc::MakeError(horoacc::ErrorKind::kUnsupported, what), error);
    }
    loaded.value()->close(opened);
    return static_cast<int>(HA_OK);
  });
}
