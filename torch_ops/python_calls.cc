#include "python_calls.h"

#include <pybind11/pybind11.h>

namespace horoacc {

WithoutGil::WithoutGil() {
  if (PyGILState_Check() != 0) thread_ = PyEval_SaveThread();
}

WithoutGil::~WithoutGil() {
  if (thread_ != nullptr) PyEval_RestoreThread(static_cast<PyThreadState*>(thread_));
}

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
