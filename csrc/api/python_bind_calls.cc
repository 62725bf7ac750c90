// The names of calls and of their results in Python.
#include <pybind11/stl.h>

#include <exception>

#include "api/python_engine.h"

namespace py = pybind11;

namespace horoacc::python {
namespace {

// `Engine.finish`, which a step may call thousands of times, as a method of Python's own kind: the
// interpreter calls it in a fraction of the time.
PyObject* Finish(PyObject* self, PyObject* handle) {
  const unsigned long long number = PyLong_AsUnsignedLongLong(handle);
  if (PyErr_Occurred() != nullptr) return nullptr;
  try {
    py::handle(self).cast<Engine*>()->Finish(number);
    Py_RETURN_NONE;
  } catch (py::error_already_set& raised) {
    raised.restore();
  } catch (const std::exception& thrown) {
    PyErr_SetString(PyExc_RuntimeError, thrown.what());
  }
  return nullptr;
}

}  // namespace

void BindCalls(py::module_& module, py::class_<Engine>& engine) {
  py::class_<Output>(module, "Output", py::buffer_protocol())
      .def_buffer([](Output& output) {
        return py::buffer_info(output.data, 1, py::format_descriptor<uint8_t>::format(),
                               static_cast<py::ssize_t>(output.bytes));
      })
      .def_property_readonly("shape",
                             [](const Output& output) { return py::tuple(py::cast(output.shape)); })
      .def_readonly("dtype", &Output::dtype)
      .def_property_readonly("on_gpu", [](const Output& output) { return bool{output.copy_to}; })
      .def(
          "copy_to",
          [](const Output& output, uintptr_t to, uintptr_t stream) { output.copy_to(to, stream); },
          py::arg("to"), py::arg("stream"))
      .def_property_readonly("received_splits", [](const Output& output) -> py::object {
        return output.has_splits ? py::cast(output.received_splits) : py::object(py::none());
      });
  engine
      .def("submit", &Engine::Submit, py::arg("collective"), py::arg("tensors"), py::arg("op") = 1,
           py::arg("prescale") = 1.0, py::arg("postscale") = 1.0, py::arg("root") = 0,
           py::arg("process_set") = 0, py::arg("splits") = py::none(), py::arg("keep") = py::none(),
           py::arg("validation_error") = py::none(), py::arg("place") = py::none(),
           py::arg("grouped") = false)
      .def("allreduce", &Engine::Allreduce, py::arg("name"), py::arg("input"), py::arg("output"),
           py::arg("shape"), py::arg("dtype"), py::arg("op"), py::arg("prescale"),
           py::arg("postscale"), py::arg("process_set"), py::arg("keep"), py::arg("wait"),
           py::arg("place") = py::none())
      .def("reduce_array", &Engine::ReduceArray, py::arg("input"), py::arg("output"),
           py::arg("name"), py::arg("op"), py::arg("process_set"))
      .def("barrier", &Engine::Barrier, py::arg("process_set"))
      .def("join_stream", &Engine::JoinStream, py::arg("handle"), py::arg("stream"))
      .def("poll", &Engine::Poll, py::arg("handle"))
      .def("wait", &Engine::Wait, py::arg("handle"), py::arg("timeout") = py::none())
      .def("outputs", &Engine::Outputs, py::arg("handle"))
      .def("release", &Engine::Release, py::arg("handle"));
  static const PyMethodDef finish = {"finish", &Finish, METH_O, nullptr};  // Python only reads it
  engine.attr("finish") = py::reinterpret_steal<py::object>(PyDescr_NewMethod(
      reinterpret_cast<PyTypeObject*>(engine.ptr()), const_cast<PyMethodDef*>(&finish)));
}

}  // namespace horoacc::python
