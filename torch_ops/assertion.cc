#include "assertion.h"

#include <pybind11/pybind11.h>

namespace horoacc {

void RaiseAssertion(const char* message) {
  const pybind11::gil_scoped_acquire gil;
  PyErr_SetString(PyExc_AssertionError, message);
  throw pybind11::error_already_set();
}

}  // namespace horoacc
