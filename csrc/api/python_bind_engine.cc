// The names of a job and its process sets in Python; python_bind_calls.cc has those of calls. They
// are apart from what they do, as making a Python function of each method is most of the compiler's
// work.
#include <pybind11/stl.h>

#include "api/python_engine.h"

namespace py = pybind11;

namespace horoacc::python {

void BindEngine(py::module_& module) {
  py::class_<Engine> engine(module, "Engine");
  BindCalls(module, engine);
  engine
      .def(py::init<const std::unordered_map<std::string, std::string>&, const py::dict&>(),
           py::arg("settings"), py::arg("placement"))
      .def_property_readonly("address", &Engine::Address)
      .def_property_readonly("calls", &Engine::Calls)
      .def_property_readonly("placement", &Engine::placement)
      .def("shutdown", &Engine::Shutdown)
      .def("abandon", &Engine::Abandon)
      .def("finalize_mpi", &Engine::FinalizeMpi)
      .def("watch_stacks", &Engine::WatchStacks, py::arg("talk"), py::arg("signal"), py::arg("fd"),
           py::arg("heed_requests"), py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("tuned", &Engine::Tuned)
      .def("tune", &Engine::Tune, py::arg("fusion_threshold"), py::arg("last_arriver_bytes"),
           py::arg("window_bytes"), py::arg("algorithm"), py::arg("trials") = 0,
           py::arg("kept") = 0, py::arg("story") = "")
      .def("serve_readings", &Engine::ServeReadings, py::arg("listener"))
      .def_property_readonly("mpi_thread_level", &Engine::MpiThreadLevel)
      .def_property_readonly("object_key", &Engine::ObjectKey)
      .def_property_readonly("arena_over", &Engine::ArenaOver)
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
      .def("arena_contains", &Engine::ArenaContains, py::arg("pointer"))
      .def("start_timeline", &Engine::StartTimeline, py::arg("path"),
           py::arg("mark_cycles") = false)
      .def("stop_timeline", &Engine::StopTimeline)
      .def("counters", &Engine::Counters);
}

}  // namespace horoacc::python
