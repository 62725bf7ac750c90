// The engine's names in Python, apart from what they do: making a Python function of each method is
// most of the compiler's work on the module.
#include <pybind11/stl.h>

#include "api/python_engine.h"

namespace py = pybind11;

namespace horoacc::python {

void BindEngine(py::module_& module) {
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
  py::class_<Engine>(module, "Engine")
      .def(py::init<const std::unordered_map<std::string, std::string>&, const py::dict&>(),
           py::arg("settings"), py::arg("placement"))
      .def_property_readonly("address", &Engine::Address)
      .def_property_readonly("placement", &Engine::placement)
      .def("shutdown", &Engine::Shutdown)
      .def("abandon", &Engine::Abandon)
      .def("finalize_mpi", &Engine::FinalizeMpi)
      .def("watch_stacks", &Engine::WatchStacks, py::arg("talk"), py::arg("signal"), py::arg("fd"),
           py::arg("heed_requests"), py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("mpi_thread_level", &Engine::MpiThreadLevel)
      .def("before_fork", &Engine::BeforeFork)
      .def("after_fork_in_parent", &Engine::AfterForkInParent)
      .def("after_fork_in_child", &Engine::AfterForkInChild)
      .def("add_process_set", &Engine::AddProcessSet, py::arg("ranks"), py::arg("own_part") = false)
      .def("remove_process_set", &Engine::RemoveProcessSet, py::arg("process_set"),
           py::arg("own_part") = false)
      .def("process_set_ids", &Engine::ProcessSetIds)
      .def("claim_group", &Engine::ClaimGroup, py::arg("ranks"))
      .def("join_group", &Engine::JoinGroup, py::arg("group"), py::arg("ranks"))
      .def("process_set_ranks", &Engine::ProcessSetRanks, py::arg("process_set"))
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
      .def("release", &Engine::Release, py::arg("handle"))
      .def("arena_contains", &Engine::ArenaContains, py::arg("pointer"))
      .def("start_timeline", &Engine::StartTimeline, py::arg("path"),
           py::arg("mark_cycles") = false)
      .def("stop_timeline", &Engine::StopTimeline)
      .def("counters", &Engine::Counters);
}

}  // namespace horoacc::python
