#pragma once
// From an ha_error to the exception of horoacc.errors.
#include <pybind11/pybind11.h>

#include <string>

#include "api/horoacc.h"

[[noreturn]] inline void Raise(const ha_error& error) {
  namespace py = pybind11;
  const py::object raised =
      py::module_::import("horoacc.errors")
          .attr("from_core")(error.kind, std::string(error.message), error.culprit);
  PyErr_SetObject(py::type::of(raised).ptr(), raised.ptr());
  throw py::error_already_set();
}

inline void Check(int code, const ha_error& error) {
  if (code != HA_OK) Raise(error);
}
