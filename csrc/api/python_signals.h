#pragma once
// The signal by which a user asks for the record of a flight.
#include <pybind11/pybind11.h>

#include <cstdint>

namespace horoacc::python {

/// How often it has come.
[[nodiscard]] uint32_t RecordRequests();

void BindSignals(pybind11::module_& module);

}  // namespace horoacc::python
