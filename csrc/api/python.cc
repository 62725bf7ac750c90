// The Python module over the C contract. horoacc/_core.pyi documents it.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "api/horoacc.h"
#include "api/python_errors.h"
#include "api/python_schedule.h"

namespace py = pybind11;

namespace {

constexpr double kSignalPeriod = 0.2;  // seconds between looks at Python's signal handlers

// Memory that the engine allocated, for the buffer protocol.
struct Output {
  void* data = nullptr;
  size_t bytes = 0;
  std::vector<int64_t> shape;
  int dtype = 0;
  std::vector<int64_t> received_splits;
  bool has_splits = false;
  ~Output() { ha_free(data); }
};

std::unordered_map<std::string, std::string> Lines(const std::string& text) {
  std::unordered_map<std::string, std::string> pairs;
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = text.find('\n', at);
    const std::string line = text.substr(at, end - at);
    const size_t equals = line.find('=');
    pairs[line.substr(0, equals)] = line.substr(equals + 1);
    at = end + 1;
  }
  return pairs;
}

template <typename Fill>
std::string Text(Fill fill) {
  std::string text(fill(nullptr, 0), '\0');
  text.resize(text.size() + 256);  // counters may grow by a digit in between
  fill(text.data(), text.size());
  text.resize(std::char_traits<char>::length(text.c_str()));
  return text;
}

class Engine {
 public:
  Engine(const std::unordered_map<std::string, std::string>& settings, const py::dict& placement) {
    std::vector<ha_setting> rows;
    for (const auto& [key, value] : settings) rows.push_back({key.c_str(), value.c_str()});
    const auto number = [&](const char* key, int otherwise) {
      return placement.contains(key) && !placement[key].is_none() ? placement[key].cast<int>()
                                                                  : otherwise;
    };
    const auto text = [&](const char* key) {
      return placement.contains(key) && !placement[key].is_none()
                 ? placement[key].cast<std::string>()
                 : std::string();
    };
    const std::string bootstrap = text("bootstrap");
    const std::string rendezvous = text("rendezvous");
    const std::string secret = text("secret");
    const std::string plugin = text("mpi_plugin");
    const std::string library = text("mpi_library");
    const std::string prefix = text("mpi_prefix");
    const std::string label = text("host_label");
    ha_placement where{};
    where.rank = number("rank", 0);
    where.size = number("size", 1);
    where.local_rank = number("local_rank", where.rank);
    where.local_size = number("local_size", where.size);
    where.cross_rank = number("cross_rank", 0);
    where.cross_size = number("cross_size", 1);
    where.bootstrap = bootstrap.c_str();
    where.rendezvous = rendezvous.c_str();
    where.rendezvous_fd = number("rendezvous_fd", -1);
    where.secret = secret.c_str();
    where.mpi_plugin = plugin.c_str();
    where.mpi_library = library.c_str();
    where.mpi_prefix = prefix.c_str();
    where.host_label = label.empty() ? nullptr : label.c_str();
    ha_error error{};
    int code = HA_OK;
    {
      const py::gil_scoped_release release;
      code = ha_engine_create(rows.data(), rows.size(), &where, &engine_, &error);
    }
    Check(code, error);
  }

  // The engine itself is never freed: tensors in the arena may outlive every Python object, and
  // their memory is the engine's. Shutting it down ends its threads and its part in the job.
  void Shutdown() {
    ha_error error{};
    int code = HA_OK;
    {
      const py::gil_scoped_release release;
      code = ha_engine_shutdown(engine_, &error);
    }
    kept_.clear();
    Check(code, error);
  }

  void FinalizeMpi() {
    ha_error error{};
    int code = HA_OK;
    {
      const py::gil_scoped_release release;
      code = ha_mpi_finalize(engine_, &error);
    }
    Check(code, error);
  }

  void BeforeFork() { ha_before_fork(engine_); }
  void AfterForkInParent() { ha_after_fork_in_parent(engine_); }
  void AfterForkInChild() { ha_after_fork_in_child(engine_); }

  [[nodiscard]] uintptr_t address() const { return reinterpret_cast<uintptr_t>(engine_); }

  [[nodiscard]] py::tuple placement() const {
    int32_t values[6];
    ha_engine_placement(engine_, values);
    return py::make_tuple(values[0], values[1], values[2], values[3], values[4], values[5]);
  }

  int AddProcessSet(const std::vector<int32_t>& ranks) {
    ha_error error{};
    int32_t id = 0;
    int code = HA_OK;
    {
      const py::gil_scoped_release release;
      code = ha_process_set_add(engine_, ranks.data(), ranks.size(), &id, &error);
    }
    Check(code, error);
    return id;
  }

  void RemoveProcessSet(int id) {
    ha_error error{};
    int code = HA_OK;
    {
      const py::gil_scoped_release release;
      code = ha_process_set_remove(engine_, id, &error);
    }
    Check(code, error);
  }

  [[nodiscard]] py::object ProcessSetRanks(int id) const {
    const int32_t count = ha_process_set_ranks(engine_, id, nullptr, 0);
    if (count < 0) return py::none();
    std::vector<int32_t> ranks(count);
    ha_process_set_ranks(engine_, id, ranks.data(), ranks.size());
    return py::cast(ranks);
  }

  uint64_t Submit(int collective, const py::sequence& tensors, int op, double prescale,
                  double postscale, int root, int process_set,
                  const std::optional<std::vector<int64_t>>& splits, py::object keep) {
    const size_t count = py::len(tensors);
    std::vector<ha_tensor> rows(count);
    std::vector<std::string> names(count);
    std::vector<std::vector<int64_t>> shapes(count);
    for (size_t t = 0; t < count; ++t) {
      const py::tuple item = tensors[t];
      if (!item[0].is_none()) names[t] = item[0].cast<std::string>();
      shapes[t] = item[3].cast<std::vector<int64_t>>();
      rows[t] = {item[0].is_none() ? nullptr : names[t].c_str(),
                 reinterpret_cast<const void*>(item[1].cast<uintptr_t>()),
                 reinterpret_cast<void*>(item[2].cast<uintptr_t>()),
                 shapes[t].data(),
                 static_cast<int32_t>(shapes[t].size()),
                 item[4].cast<int32_t>()};
    }
    ha_call call{};
    call.collective = collective;
    call.process_set = process_set;
    call.op = op;
    call.root = root;
    call.prescale = prescale;
    call.postscale = postscale;
    if (splits) {
      call.splits = splits->data();
      call.nsplits = static_cast<int32_t>(splits->size());
    }
    return Hand(call, rows, std::move(keep));
  }

  uint64_t Allreduce(const std::optional<std::string>& name, uintptr_t input, uintptr_t output,
                     const py::tuple& shape, int dtype, int op, double prescale, double postscale,
                     int process_set, py::object keep) {
    int64_t dims[16];
    const size_t ndim = shape.size();
    if (ndim > 16) throw py::value_error("at most 16 dimensions");
    for (size_t dim = 0; dim < ndim; ++dim)
      dims[dim] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape.ptr(), dim));
    const ha_tensor row{name ? name->c_str() : nullptr,  reinterpret_cast<const void*>(input),
                        reinterpret_cast<void*>(output), dims,
                        static_cast<int32_t>(ndim),      dtype};
    ha_call call{};
    call.collective = HA_ALLREDUCE;
    call.process_set = process_set;
    call.op = op;
    call.prescale = prescale;
    call.postscale = postscale;
    return Hand(call, {&row, 1}, std::move(keep));
  }

  bool Poll(uint64_t handle) {
    int state = 0;
    {
      const py::gil_scoped_release release;
      state = ha_poll(engine_, handle);
    }
    if (state < 0) throw py::key_error("unknown handle " + std::to_string(handle));
    return state == 1;
  }

  void Wait(uint64_t handle, std::optional<double> timeout) {
    double left = timeout.value_or(-1);
    for (;;) {
      const double slice = left < 0 ? kSignalPeriod : std::min(left, kSignalPeriod);
      ha_error error{};
      int code = HA_OK;
      {
        const py::gil_scoped_release release;
        code = ha_wait(engine_, handle, slice, &error);
      }
      if (code == HA_OK) return;
      const bool complete = code != HA_TIMEOUT || ha_poll(engine_, handle) != 0;
      if (complete) {
        // It may have completed between the two calls: ask for the outcome itself.
        code = ha_wait(engine_, handle, 0, &error);
        if (code == HA_OK) return;
        Raise(error);
      }
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      if (left >= 0) {
        left -= slice;
        if (left <= 0) Raise(error);
      }
    }
  }

  std::vector<std::unique_ptr<Output>> Outputs(uint64_t handle) {
    std::vector<std::unique_ptr<Output>> outputs;
    for (size_t index = 0;; ++index) {
      ha_output found{};
      if (ha_result(engine_, handle, index, &found, nullptr) != HA_OK) break;
      auto output = std::make_unique<Output>();
      output->shape.assign(found.shape, found.shape + found.ndim);
      output->dtype = found.dtype;
      if (found.received_splits) {
        output->received_splits.assign(found.received_splits,
                                       found.received_splits + found.nsplits);
        output->has_splits = true;
      }
      output->data = ha_take(engine_, handle, index);
      if (!output->data) continue;  // the caller's own memory
      output->bytes = found.bytes;
      outputs.push_back(std::move(output));
    }
    return outputs;
  }

  void Release(uint64_t handle) {
    ha_release(engine_, handle);
    kept_.erase(handle);
  }

  [[nodiscard]] bool ArenaContains(uintptr_t pointer) const {
    return ha_arena_contains(engine_, reinterpret_cast<const void*>(pointer)) != 0;
  }

  void StartTimeline(const std::string& path, bool mark_cycles) {
    ha_error error{};
    Check(ha_timeline_start(engine_, path.c_str(), mark_cycles, &error), error);
  }

  void StopTimeline() {
    ha_error error{};
    int code = HA_OK;
    {
      const py::gil_scoped_release release;
      code = ha_timeline_stop(engine_, &error);
    }
    Check(code, error);
  }

  [[nodiscard]] std::unordered_map<std::string, uint64_t> Counters() const {
    std::unordered_map<std::string, uint64_t> counters;
    for (const auto& [name, value] : Lines(Text(
             [&](char* text, size_t capacity) { return ha_counters(engine_, text, capacity); }))) {
      counters[name] = std::stoull(value);
    }
    return counters;
  }

 private:
  uint64_t Hand(const ha_call& call, std::span<const ha_tensor> tensors, py::object keep) {
    ha_error error{};
    ha_handle handle = 0;
    int code = HA_OK;
    {
      const py::gil_scoped_release release;
      code = ha_submit(engine_, &call, tensors.data(), tensors.size(), nullptr, nullptr, &handle,
                       &error);
    }
    Check(code, error);
    if (!keep.is_none()) kept_.emplace(handle, std::move(keep));
    return handle;
  }

  ha_engine* engine_ = nullptr;
  std::unordered_map<uint64_t, py::object> kept_;  // guarded by the GIL
};

}  // namespace

PYBIND11_MODULE(_core, module) {
  module.doc() = "The engine of HoroACC.";
  module.attr("ALLREDUCE") = static_cast<int>(HA_ALLREDUCE);
  module.attr("ALLGATHER") = static_cast<int>(HA_ALLGATHER);
  module.attr("BROADCAST") = static_cast<int>(HA_BROADCAST);
  module.attr("ALLTOALL") = static_cast<int>(HA_ALLTOALL);
  module.attr("REDUCESCATTER") = static_cast<int>(HA_REDUCESCATTER);
  module.attr("BARRIER") = static_cast<int>(HA_BARRIER);

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
      .def_property_readonly("address", &Engine::address)
      .def_property_readonly("placement", &Engine::placement)
      .def("shutdown", &Engine::Shutdown)
      .def("finalize_mpi", &Engine::FinalizeMpi)
      .def("before_fork", &Engine::BeforeFork)
      .def("after_fork_in_parent", &Engine::AfterForkInParent)
      .def("after_fork_in_child", &Engine::AfterForkInChild)
      .def("add_process_set", &Engine::AddProcessSet, py::arg("ranks"))
      .def("remove_process_set", &Engine::RemoveProcessSet, py::arg("process_set"))
      .def("process_set_ranks", &Engine::ProcessSetRanks, py::arg("process_set"))
      .def("submit", &Engine::Submit, py::arg("collective"), py::arg("tensors"), py::arg("op") = 1,
           py::arg("prescale") = 1.0, py::arg("postscale") = 1.0, py::arg("root") = 0,
           py::arg("process_set") = 0, py::arg("splits") = py::none(), py::arg("keep") = py::none())
      .def("allreduce", &Engine::Allreduce)
      .def("poll", &Engine::Poll, py::arg("handle"))
      .def("wait", &Engine::Wait, py::arg("handle"), py::arg("timeout") = py::none())
      .def("outputs", &Engine::Outputs, py::arg("handle"))
      .def("release", &Engine::Release, py::arg("handle"))
      .def("arena_contains", &Engine::ArenaContains, py::arg("pointer"))
      .def("start_timeline", &Engine::StartTimeline, py::arg("path"),
           py::arg("mark_cycles") = false)
      .def("stop_timeline", &Engine::StopTimeline)
      .def("counters", &Engine::Counters);

  DefineSchedules(module);
  module.def("version", [] { return std::string(ha_version()); });
  module.def("setting_defaults", [] { return Lines(Text(ha_setting_defaults)); });
}
