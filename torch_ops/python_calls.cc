#include "python_calls.h"

#include <pybind11/pybind11.h>

namespace horoacc {

void CheckSignals() {
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

void RaiseAssertion(const char* message) {
  const pybind11::gil_scoped_acquire gil;
  PyErr_SetString(PyExc_AssertionError, message);
  throw pybind11::error_already_set();
}

}  // namespace horoacc
