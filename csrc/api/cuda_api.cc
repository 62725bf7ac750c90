// The C contract's questions about GPUs: do the kernels work here, is there an NCCL, and if not,
// why?
#include <cstdio>

#include "api/horoacc.h"
#include "api/report.h"
#include "execute/cuda/host/cuda_library.h"
#include "execute/cuda/nccl/nccl_calls.h"

int ha_check_cuda(const char* plugin, int device, ha_error* error) {
  return horoacc::Guarded(error, [&] {
    const auto loaded = horoacc::cuda::LoadCudaPlugin({.plugin = plugin});
    if (!loaded.ok()) return horoacc::Report(loaded.error(), error);
    void* opened = nullptr;
    ha_cuda_error failure{};
    int code = loaded.value()->open(&opened, device, &failure);
    if (code == 0) {
      ha_cuda_traits traits{};
      code = loaded.value()->traits(opened, &traits, &failure);
      loaded.value()->close(opened);
    }
    if (code != 0) {
      const auto what = "GPU " + std::to_string(device) + ": " + failure.message;
      return horoacc::Report(horoacc::MakeError(horoacc::ErrorKind::kUnsupported, what), error);
    }
    return static_cast<int>(HA_OK);
  });
}

int ha_check_nccl(const char* library, char* version, ha_error* error) {
  return horoacc::Guarded(error, [&] {
    const auto calls = horoacc::cuda::LoadNccl(library);
    if (!calls.ok()) return horoacc::Report(calls.error(), error);
    std::snprintf(version, 16, "%s", calls.value().Version().c_str());
    return static_cast<int>(HA_OK);
  });
}
