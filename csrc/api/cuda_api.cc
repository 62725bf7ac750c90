// The C contract's checks of GPUs: whether kernels run here, and whether NCCL can be loaded.
#include <cstdio>

#include "api/horoacc.h"
#include "api/report.h"
#include "execute/cuda/device/cuda_library.h"
#include "execute/cuda/nccl/nccl_calls.h"

int ha_check_cuda(const char* plugin, int device, ha_error* error) {
  return horoacc::Guarded(error, [&]() -> horoacc::Status {
    HA_ASSIGN(const auto loaded, horoacc::cuda::LoadCudaPlugin({.plugin = plugin}));
    void* opened = nullptr;
    ha_cuda_error failure{};
    int code = loaded->open(&opened, device, &failure);
    if (code == 0) {
      ha_cuda_traits traits{};
      code = loaded->traits(opened, &traits, &failure);
      loaded->close(opened);
    }
    if (code == 0) return {};
    return horoacc::MakeError(horoacc::ErrorKind::kUnsupported,
                              "GPU " + std::to_string(device) + ": " + failure.message);
  });
}

int ha_check_nccl(const char* library, char* version, ha_error* error) {
  return horoacc::Guarded(error, [&]() -> horoacc::Status {
    HA_ASSIGN(const auto calls, horoacc::cuda::LoadNccl(library));
    std::snprintf(version, 16, "%s", calls.Version().c_str());
    return {};
  });
}
