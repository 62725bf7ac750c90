#include "api/python_outputs.h"

#include <pybind11/stl.h>

#include <utility>

namespace py = pybind11;

namespace horoacc::python {

std::vector<std::unique_ptr<Output>> TakeOutputs(ha_engine* engine, uint64_t handle) {
  std::vector<std::unique_ptr<Output>> outputs;
  for (size_t index = 0;; ++index) {
    ha_output found{};
    if (ha_result(engine, handle, index, &found, nullptr) != HA_OK) break;
    auto output = std::make_unique<Output>();
    output->shape.assign(found.shape, found.shape + found.ndim);
    output->dtype = found.dtype;
    if (found.received_splits) {
      output->received_splits.assign(found.received_splits, found.received_splits + found.nsplits);
      output->has_splits = true;
    }
    output->data = ha_take(engine, handle, index);
    if (!output->data) continue;  // the caller's own memory
    output->bytes = found.bytes;
    outputs.push_back(std::move(output));
  }
  return outputs;
}

void BindOutput(py::module_& module) {
  py::class_<Output>(module, "Output", py::buffer_protocol())
      .def_buffer([](Output& output) {
        return py::buffer_info(output.data, 1, py::format_descriptor<uint8_t>::format(),
                               static_cast<py::ssize_t>(output.bytes));
      })
      .def_property_readonly("shape",
                             [](const Output& output) { return py::tuple(py::cast(output.shape)); })
      .def_readonly("dtype", &Output::dtype)
      .def_property_readonly("received_splits", [](const Output& output) -> py::object {
        return output.has_splits ? py::cast(output.received_splits) : py::object(py::none());
      });
}

}  // namespace horoacc::python
