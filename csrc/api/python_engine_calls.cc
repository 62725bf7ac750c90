// Calls of Python's engine for bindings that read a framework's tensors themselves.
#include "api/python_engine_calls.h"

#include <exception>
#include <memory>

#include "api/python_engine.h"

namespace py = pybind11;

namespace horoacc::python {
namespace {

// False, and Python's exception, if the action throws.
template <typename Action>
bool Completes(Action action) {
  try {
    action();
    return true;
  } catch (py::error_already_set& raised) {
    raised.restore();
  } catch (const std::exception& thrown) {
    PyErr_SetString(PyExc_RuntimeError, thrown.what());
  }
  return false;
}

EngineCalls* CallsOf(PyObject* capsule) {
  return static_cast<EngineCalls*>(PyCapsule_GetPointer(capsule, EngineCalls::kName));
}

}  // namespace

py::object Engine::Calls(py::object self) {
  auto calls = std::make_unique<EngineCalls>();
  calls->engine = self.cast<Engine*>();
  calls->core = self.cast<Engine*>()->engine_;
  calls->submit = [](void* engine, const ha_call* call, const ha_tensor* tensors, size_t count,
                     PyObject* keep, ha_handle* handle) {
    return Completes([&] {
      *handle = static_cast<Engine*>(engine)->SubmitCall(*call, {tensors, count},
                                                         py::reinterpret_borrow<py::object>(keep));
    });
  };
  calls->run = [](void* engine, const ha_call* call, const ha_tensor* tensors, size_t count,
                  PyObject* keep) {
    return Completes([&] {
      static_cast<Engine*>(engine)->RunCall(*call, {tensors, count},
                                            py::reinterpret_borrow<py::object>(keep));
    });
  };
  calls->wait = [](void* engine, ha_handle handle) {
    const bool done = Completes([&] { static_cast<Engine*>(engine)->Wait(handle, std::nullopt); });
    // After an exception of a signal's handler the call is still in flight.
    if (!done) static_cast<Engine*>(engine)->Release(handle);
    return done;
  };
  calls->release = [](void* engine, ha_handle handle) {
    static_cast<Engine*>(engine)->Release(handle);
  };
  auto capsule = py::reinterpret_steal<py::object>(
      PyCapsule_New(calls.get(), EngineCalls::kName, [](PyObject* over) {
        const std::unique_ptr<EngineCalls> freed(CallsOf(over));
        Py_DECREF(static_cast<PyObject*>(PyCapsule_GetContext(over)));
      }));
  if (!capsule) throw py::error_already_set();
  (void)calls.release();
  PyCapsule_SetContext(capsule.ptr(), self.release().ptr());
  return capsule;
}

}  // namespace horoacc::python
