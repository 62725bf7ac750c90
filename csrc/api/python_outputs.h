#pragma once
// Results whose memory the engine allocated, for Python's buffer protocol.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "api/horoacc.h"

namespace horoacc::python {

struct Output {
  void* data = nullptr;
  size_t bytes = 0;
  std::vector<int64_t> shape;
  int dtype = 0;
  std::vector<int64_t> received_splits;
  bool has_splits = false;
  Output() = default;
  ~Output() { ha_free(data); }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
};

/// Takes the memory of every member of a complete handle that the engine allocated for.
[[nodiscard]] std::vector<std::unique_ptr<Output>> TakeOutputs(ha_engine* engine, uint64_t handle);

void BindOutput(pybind11::module_& module);

}  // namespace horoacc::python
