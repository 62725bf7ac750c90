// Proofs and predictions of collective schedules, for horoacc/schedule.py.
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "api/horoacc.h"
#include "api/python_contract.h"
#include "api/python_engine.h"

namespace py = pybind11;

namespace horoacc::python {
namespace {

ha_plan PlanOf(const std::string& algorithm, const std::vector<uint32_t>& ranks_per_host,
               uint32_t root, uint32_t trees) {
  return {algorithm.c_str(), ranks_per_host.data(), ranks_per_host.size(), root, trees};
}

std::vector<std::string> AlgorithmNames() {
  std::string text(ha_algorithms(nullptr, 0) + 1, '\0');
  ha_algorithms(text.data(), text.size());
  std::vector<std::string> names;
  for (size_t at = 0, end = 0; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    names.push_back(text.substr(at, end - at));
  }
  return names;
}

ha_fabric UsualFabric() {
  ha_fabric fabric{};
  ha_fabric_defaults(&fabric);
  return fabric;
}

ha_prediction Simulate(const std::string& algorithm, const std::vector<uint32_t>& ranks_per_host,
                       double bytes, const ha_fabric& fabric, uint32_t trees) {
  const ha_plan plan = PlanOf(algorithm, ranks_per_host, 0, trees);
  ha_prediction prediction{};
  Call([&](ha_error* error) { return ha_simulate(&plan, &fabric, bytes, &prediction, error); });
  return prediction;
}

ha_proof Prove(const std::string& algorithm, const std::vector<uint32_t>& ranks_per_host,
               uint32_t root, uint32_t trees) {
  const ha_plan plan = PlanOf(algorithm, ranks_per_host, root, trees);
  ha_proof proof{};
  Call([&](ha_error* error) { return ha_prove(&plan, &proof, error); });
  return proof;
}

}  // namespace

void BindSchedules(py::module_& module) {
  py::class_<ha_fabric>(module, "Fabric")
      .def(py::init(&UsualFabric))
      .def_readwrite("local_latency", &ha_fabric::local_latency)
      .def_readwrite("local_bandwidth", &ha_fabric::local_bandwidth)
      .def_readwrite("memory_bandwidth", &ha_fabric::memory_bandwidth)
      .def_readwrite("network_latency", &ha_fabric::network_latency)
      .def_readwrite("stream_bandwidth", &ha_fabric::stream_bandwidth)
      .def_readwrite("nic_bandwidth", &ha_fabric::nic_bandwidth)
      .def_readwrite("reduce_bandwidth", &ha_fabric::reduce_bandwidth)
      .def_readwrite("overhead", &ha_fabric::overhead)
      .def_readwrite("slice_bytes", &ha_fabric::slice_bytes)
      .def_readwrite("nics", &ha_fabric::nics);
  py::class_<ha_prediction>(module, "Prediction")
      .def_readonly("seconds", &ha_prediction::seconds)
      .def_readonly("windows", &ha_prediction::windows)
      .def_readonly("events", &ha_prediction::events);
  py::class_<ha_proof>(module, "Proof")
      .def_readonly("steps", &ha_proof::steps)
      .def_readonly("links", &ha_proof::links)
      .def_readonly("rounds", &ha_proof::rounds)
      .def_readonly("most_sent", &ha_proof::most_sent)
      .def_readonly("host_sends", &ha_proof::host_sends)
      .def_readonly("network_messages", &ha_proof::network_messages);
  module.def("algorithms", &AlgorithmNames);
  module.def("simulate", &Simulate, py::arg("algorithm"), py::arg("ranks_per_host"),
             py::arg("bytes"), py::arg("fabric"), py::arg("trees") = 4);
  module.def("prove", &Prove, py::arg("algorithm"), py::arg("ranks_per_host"), py::arg("root") = 0,
             py::arg("trees") = 4);
}

}  // namespace horoacc::python
