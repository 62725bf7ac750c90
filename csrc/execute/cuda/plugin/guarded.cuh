#pragma once
// From a Status to the C contract's return code. Included only by the plug-in's .cu files.
#include <cstdio>
#include <exception>

#include "base/result.h"
#include "execute/cuda/cuda_plugin.h"

namespace horoacc::cuda {

inline int Report(const Status& status, ha_cuda_error* error) {
  if (status.ok()) return 0;
  std::snprintf(error->message, sizeof(error->message), "%s", status.error().message.c_str());
  return 1;
}

/// Nothing that is thrown leaves the plug-in.
template <typename Body>
int Guarded(ha_cuda_error* error, Body body) {
  try {
    return Report(body(), error);
  } catch (const std::exception& failure) {
    return Report(MakeError(ErrorKind::kSystem, failure.what()), error);
  }
}

}  // namespace horoacc::cuda
