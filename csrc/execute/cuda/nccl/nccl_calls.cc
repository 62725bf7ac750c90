#include "execute/cuda/nccl/nccl_calls.h"

#include <dlfcn.h>

#include <type_traits>

namespace horoacc::cuda {

Status NcclCalls::Check(int code, void* comm) const {
  if (code == kSuccess || code == kInProgress) return {};
  std::string text = std::string("NCCL: ") + error(code);
  const char* const more = last_error != nullptr ? last_error(comm) : nullptr;
  if (more != nullptr && *more != '\0') text += std::string(": ") + more;
  return MakeError(ErrorKind::kSystem, text);
}

std::string NcclCalls::Version() const {
  int number = 0;
  version(&number);
  return std::to_string(number / 10000) + "." + std::to_string(number / 100 % 100) + "." +
         std::to_string(number % 100);
}

Result<NcclCalls> LoadNccl(const std::string& library) {
  void* const loaded = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) {
    return MakeError(ErrorKind::kUnsupported, "NCCL cannot be loaded: " + std::string(::dlerror()));
  }
  NcclCalls calls;
  std::string missing;
  const auto find = [&](auto& call, const char* name) {
    call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(::dlsym(loaded, name));
    if (call == nullptr && missing.empty()) missing = name;
  };
  find(calls.version, "ncclGetVersion");
  find(calls.error, "ncclGetErrorString");
  find(calls.unique_id, "ncclGetUniqueId");
  find(calls.init, "ncclCommInitRankConfig");
  find(calls.init_all, "ncclCommInitAll");
  find(calls.destroy, "ncclCommDestroy");
  find(calls.async_error, "ncclCommGetAsyncError");
  find(calls.abort, "ncclCommAbort");
  find(calls.group_start, "ncclGroupStart");
  find(calls.group_end, "ncclGroupEnd");
  find(calls.allreduce, "ncclAllReduce");
  if (!missing.empty()) {
    return MakeError(ErrorKind::kUnsupported,
                     library + " is no NCCL of 2.14 or newer: it has no " + missing);
  }
  find(calls.last_error, "ncclGetLastError");
  return calls;
}

int NcclTypeOf(DType type) {
  switch (type) {
    case DType::kInt8:
      return 0;
    case DType::kUInt8:
      return 1;
    case DType::kInt32:
      return 2;
    case DType::kInt64:
      return 4;
    case DType::kFloat16:
      return 6;
    case DType::kFloat32:
      return 7;
    case DType::kFloat64:
      return 8;
    case DType::kBFloat16:
      return 9;
    default:
      return -1;
  }
}

int NcclOpOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:  // divided afterwards
      return 0;
    case ReduceOp::kProduct:
      return 1;
    case ReduceOp::kMax:
      return 2;
    case ReduceOp::kMin:
      return 3;
    default:
      return -1;
  }
}

}  // namespace horoacc::cuda
