#include "api/python_contract.h"

namespace py = pybind11;

namespace horoacc::python {

void Raise(const ha_error& error) {
  const py::object raised =
      py::module_::import("horoacc.errors")
          .attr("from_core")(error.kind, std::string(error.message), error.culprit,
                             std::string(error.host), std::string(error.tensor), error.collective,
                             std::string(error.hint));
  PyErr_SetObject(py::type::of(raised).ptr(), raised.ptr());
  throw py::error_already_set();
}

}  // namespace horoacc::python
