#pragma once
// From results, and exceptions of the standard library, to the C contract's errors.
#include <algorithm>
#include <cstring>
#include <exception>
#include <new>

#include "api/horoacc.h"
#include "base/result.h"

namespace horoacc {

/// Copies what fits; returns the length needed, like snprintf.
inline size_t PutText(const std::string& all, char* text, size_t capacity) {
  if (capacity > 0) {
    const size_t length = std::min(all.size(), capacity - 1);
    std::memcpy(text, all.data(), length);
    text[length] = '\0';
  }
  return all.size();
}

inline int Report(const Error& failure, ha_error* error) {
  if (error) {
    error->kind = static_cast<int32_t>(failure.kind);
    error->culprit = failure.culprit;
    error->collective = failure.collective;
    PutText(failure.message, error->message, sizeof error->message);
    PutText(failure.host, error->host, sizeof error->host);
    PutText(failure.tensor, error->tensor, sizeof error->tensor);
    PutText(HintOf(failure), error->hint, sizeof error->hint);
  }
  return static_cast<int>(failure.kind);
}

/// Runs `body` and reports its Status; an exception of the standard library (memory, mostly) is an
/// error as well.
template <typename Body>
int Guarded(ha_error* error, Body body) {
  try {
    const Status status = body();
    return status.ok() ? HA_OK : Report(status.error(), error);
  } catch (const std::bad_alloc&) {
    return Report(MakeError(ErrorKind::kSystem, "out of memory"), error);
  } catch (const std::exception& thrown) {
    return Report(MakeError(ErrorKind::kSystem, thrown.what()), error);
  }
}

}  // namespace horoacc
