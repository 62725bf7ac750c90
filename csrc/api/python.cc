// The Python module over the C contract. horoacc/_core.pyi documents it.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "api/horoacc.h"
#include "api/python_contract.h"
#include "api/python_engine.h"

namespace py = pybind11;

PYBIND11_MODULE(_core, module) {
  module.doc() = "The engine of HoroACC.";
  module.attr("ALLREDUCE") = static_cast<int>(HA_ALLREDUCE);
  module.attr("ALLGATHER") = static_cast<int>(HA_ALLGATHER);
  module.attr("BROADCAST") = static_cast<int>(HA_BROADCAST);
  module.attr("ALLTOALL") = static_cast<int>(HA_ALLTOALL);
  module.attr("REDUCESCATTER") = static_cast<int>(HA_REDUCESCATTER);
  module.attr("BARRIER") = static_cast<int>(HA_BARRIER);
  module.attr("REDUCE") = static_cast<int>(HA_REDUCE);
  module.attr("GATHER") = static_cast<int>(HA_GATHER);
  module.attr("SCATTER") = static_cast<int>(HA_SCATTER);
  module.attr("MONITORED_BARRIER") = static_cast<int>(HA_MONITORED_BARRIER);
  module.attr("JOIN") = static_cast<int>(HA_JOIN);

  horoacc::python::BindEngine(module);
  horoacc::python::BindSchedules(module);
  horoacc::python::BindSignals(module);

  module.def("version", [] { return std::string(ha_version()); });
  module.def("cuda_trouble", [](const std::string& plugin, int device) {
    ha_error error{};
    const py::gil_scoped_release release;
    return ha_check_cuda(plugin.c_str(), device, &error) == HA_OK ? std::string() : error.message;
  });
  module.def("nccl_version", [](const std::string& library) {
    ha_error error{};
    char version[16] = {};
    const py::gil_scoped_release release;
    const int code = ha_check_nccl(library.c_str(), version, &error);
    return std::pair<std::string, std::string>(version, code == HA_OK ? "" : error.message);
  });
  module.def("libcrypto_version", [](const std::string& library) {
    ha_error error{};
    char version[64] = {};
    const py::gil_scoped_release release;
    const int code = ha_check_libcrypto(library.c_str(), version, &error);
    return std::pair<std::string, std::string>(version, code == HA_OK ? "" : error.message);
  });
  module.def("setting_defaults", [] { return horoacc::python::Pairs(ha_setting_defaults); });
}
