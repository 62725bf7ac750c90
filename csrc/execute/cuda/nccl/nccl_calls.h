#pragma once
// The part of NCCL's C interface that is used here, so that neither compiling nor loading the core
// needs NCCL. NCCL 2.14 or newer.
#include <cstddef>
#include <string>

#include "base/dtype.h"
#include "base/result.h"

namespace horoacc::cuda {

/// Ranks with the same id find each other. Passed by value.
struct NcclId {
  char bytes[128];
};

/// The beginning of NCCL's struct, as in the version that the field names.
struct NcclConfig {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
};

struct NcclCalls {
  static constexpr int kSuccess = 0;
  static constexpr int kInProgress = 7;

  int (*version)(int*) = nullptr;
  const char* (*error)(int) = nullptr;
  const char* (*last_error)(void* comm) = nullptr;  ///< null: this NCCL has none
  int (*unique_id)(NcclId*) = nullptr;
  int (*init)(void** comm, int ranks, NcclId id, int rank, NcclConfig*) = nullptr;
  int (*init_all)(void** comms, int ranks, const int* devices) = nullptr;
  int (*destroy)(void* comm) = nullptr;
  int (*async_error)(void* comm, int* error) = nullptr;
  int (*abort)(void* comm) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*allreduce)(const void* from, void* to, size_t count, int type, int op, void* comm,
                   void* stream) = nullptr;

  /// kSystem with NCCL's message, unless `code` is success or in progress. `comm` may be null.
  [[nodiscard]] Status Check(int code, void* comm) const;
  /// "2.27.7".
  [[nodiscard]] std::string Version() const;
};

/// Loads the library, by path or soname; it stays loaded. The error says what is missing.
[[nodiscard]] Result<NcclCalls> LoadNccl(const std::string& library);

/// NCCL's numbers; -1: NCCL has no such type or operation.
[[nodiscard]] int NcclTypeOf(DType type);
[[nodiscard]] int NcclOpOf(ReduceOp op);

}  // namespace horoacc::cuda
