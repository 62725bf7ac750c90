#include "api/python_engine.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <utility>

#include "api/python_contract.h"

namespace py = pybind11;

namespace horoacc::python {
namespace {

constexpr double kSignalPeriod = 0.2;  // seconds between calls of Python's signal handlers
constexpr size_t kMostDims = 64;       // of NumPy's arrays

// Runs the handlers of pending signals. Nonzero if one raised: Call raises it.
int HandlersRaise(void*) {
  const py::gil_scoped_acquire acquire;
  return PyErr_CheckSignals();
}

// The same, and then calls a function of Python's, which may raise, too.
int HandlersOrFunctionRaise(void* function) {
  const py::gil_scoped_acquire acquire;
  if (const int raised = PyErr_CheckSignals(); raised != 0) return raised;
  PyObject* const result = PyObject_CallNoArgs(static_cast<PyObject*>(function));
  Py_XDECREF(result);
  return result ? 0 : -1;
}

// An array through Python's buffer protocol, if it is contiguous and of a type that has a number.
class PlainArray {
 public:
  PlainArray(const py::object& array, bool writable) {
    const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(array.ptr(), &view_, flags) == 0)
      dtype_ = NumberOf(view_.format);
    else
      PyErr_Clear();
  }
  ~PlainArray() { PyBuffer_Release(&view_); }
  PlainArray(const PlainArray&) = delete;
  PlainArray& operator=(const PlainArray&) = delete;

  [[nodiscard]] const Py_buffer& view() const { return view_; }
  /// By ha_dtype.
  [[nodiscard]] std::optional<int32_t> dtype() const { return dtype_; }
  [[nodiscard]] bool HasShapeOf(const PlainArray& other) const {
    return std::equal(view_.shape, view_.shape + view_.ndim, other.view_.shape,
                      other.view_.shape + other.view_.ndim);
  }

 private:
  static std::optional<int32_t> NumberOf(std::string_view format) {
    static constexpr std::pair<std::string_view, int32_t> kNumbers[] = {
        {"f", HA_FLOAT32}, {"d", HA_FLOAT64}, {"e", HA_FLOAT16},    {"i", HA_INT32},
        {"l", HA_INT64},   {"q", HA_INT64},   {"h", HA_INT16},      {"b", HA_INT8},
        {"B", HA_UINT8},   {"?", HA_BOOL},    {"Zf", HA_COMPLEX64}, {"Zd", HA_COMPLEX128}};
    const auto* const found =
        std::ranges::find(kNumbers, format, &std::pair<std::string_view, int32_t>::first);
    return found == std::end(kNumbers) ? std::nullopt : std::optional(found->second);
  }

  Py_buffer view_{};
  std::optional<int32_t> dtype_;
};

ha_gpu GpuOf(const std::optional<Place>& place) {
  if (!place) return {};
  return {place->first, reinterpret_cast<void*>(place->second)};
}

}  // namespace

Engine::Engine(const std::unordered_map<std::string, std::string>& settings,
               const py::dict& placement) {
  std::vector<ha_setting> rows;
  for (const auto& [key, value] : settings) rows.push_back({key.c_str(), value.c_str()});
  const auto number = [&](const char* key, int otherwise) {
    return placement.contains(key) ? placement[key].cast<int>() : otherwise;
  };
  const auto text = [&](const char* key) {
    return placement.contains(key) ? placement[key].cast<std::string>() : std::string();
  };
  const std::string bootstrap = text("bootstrap");
  const std::string rendezvous = text("rendezvous");
  const std::string secret = text("secret");
  const std::string plugin = text("mpi_plugin");
  const std::string launcher = text("mpi_launcher");
  const std::string library = text("mpi_library");
  const std::string prefix = text("mpi_prefix");
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
  where.mpi_launcher = launcher.c_str();
  where.mpi_library = library.c_str();
  where.mpi_prefix = prefix.c_str();
  const py::object check =
      placement.contains("check") ? py::object(placement["check"]) : py::object(py::none());
  Call([&](ha_error* error) {
    return ha_engine_create(rows.data(), rows.size(), &where, &engine_,
                            check.is_none() ? HandlersRaise : HandlersOrFunctionRaise, check.ptr(),
                            error);
  });
}

// pybind11 throws if its own state is missing, which lives as long as this class.
// NOLINTNEXTLINE(bugprone-exception-escape)
Engine::~Engine() {
  if (!engine_ || !over_ || ha_mpi_thread_level(engine_) >= 0) return;
  const py::gil_scoped_release open;
  if (shared_) {
    ha_engine_unref(engine_);
  } else {
    ha_engine_destroy(engine_);
  }
}

void Engine::Shutdown() {
  // Freed after the engine is down, even if that failed.
  const auto kept = std::exchange(kept_, {});
  Call([&](ha_error* error) { return ha_engine_shutdown(engine_, error); });
  over_ = true;
}

void Engine::Abandon() {
  const auto kept = std::exchange(kept_, {});
  Call([&](ha_error* error) { return ha_engine_abandon(engine_, error); });
}

void Engine::FinalizeMpi() {
  Call([&](ha_error* error) { return ha_mpi_finalize(engine_, error); });
}

py::tuple Engine::placement() const {
  int32_t values[6];
  ha_engine_placement(engine_, values);
  return py::make_tuple(values[0], values[1], values[2], values[3], values[4], values[5]);
}

int Engine::AddProcessSet(const std::vector<int32_t>& ranks, bool own_part) {
  int32_t id = 0;
  Call([&](ha_error* error) {
    return ha_process_set_add(engine_, ranks.data(), ranks.size(), own_part, &id, HandlersRaise,
                              nullptr, error);
  });
  return id;
}

void Engine::RemoveProcessSet(int id, bool own_part) {
  Call([&](ha_error* error) {
    return ha_process_set_remove(engine_, id, own_part, HandlersRaise, nullptr, error);
  });
}

std::vector<int32_t> Engine::ProcessSetIds() const {
  std::vector<int32_t> ids(ha_process_set_ids(engine_, nullptr, 0));
  ids.resize(std::min(ids.size(), ha_process_set_ids(engine_, ids.data(), ids.size())));
  return ids;
}

int Engine::ClaimGroup(const std::vector<int32_t>& ranks) {
  int32_t id = 0;
  Call([&](ha_error* error) {
    return ha_group_claim(engine_, ranks.data(), ranks.size(), &id, error);
  });
  return id;
}

void Engine::JoinGroup(int id, const std::vector<int32_t>& ranks) {
  Call([&](ha_error* error) {
    return ha_group_join(engine_, id, ranks.data(), ranks.size(), error);
  });
}

py::object Engine::ProcessSetRanks(int id) const {
  const int32_t count = ha_process_set_ranks(engine_, id, nullptr, 0);
  if (count < 0) return py::none();
  std::vector<int32_t> ranks(count);
  ha_process_set_ranks(engine_, id, ranks.data(), ranks.size());
  return py::cast(ranks);
}

uint64_t Engine::Submit(int collective, const py::sequence& tensors, int op, double prescale,
                        double postscale, int root, int process_set,
                        const std::optional<std::vector<int64_t>>& splits, py::object keep,
                        const std::optional<std::string>& validation_error,
                        const std::optional<Place>& place, bool grouped) {
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
  if (validation_error) call.validation_error = validation_error->c_str();
  const ha_gpu gpu = GpuOf(place);
  if (place) call.gpu = &gpu;
  call.grouped = grouped ? 1 : 0;
  return SubmitCall(call, rows, std::move(keep));
}

uint64_t Engine::Allreduce(const std::optional<std::string>& name, uintptr_t input,
                           uintptr_t output, const py::tuple& shape, int dtype, int op,
                           double prescale, double postscale, int process_set, py::object keep,
                           bool wait, const std::optional<Place>& place) {
  int64_t dims[kMostDims];
  // The core refuses more than 16, on all ranks.
  const size_t ndim = std::min(shape.size(), kMostDims);
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
  const ha_gpu gpu = GpuOf(place);
  if (place) call.gpu = &gpu;
  if (!wait) return SubmitCall(call, {&row, 1}, std::move(keep));
  RunCall(call, {&row, 1}, std::move(keep));
  return 0;
}

// Submits and waits; nothing is left of the call.
void Engine::RunCall(const ha_call& call, std::span<const ha_tensor> tensors, py::object keep) {
  if (!left_.empty()) ReleaseLeft();
  ha_handle handle = 0;
  ha_error error = NoError();
  int submitted = HA_OK;
  int waited = HA_OK;
  {
    const WithoutGil released;
    submitted = ha_submit(engine_, &call, tensors.data(), tensors.size(), nullptr, nullptr, &handle,
                          &error);
    if (submitted == HA_OK) waited = ha_wait(engine_, handle, kSignalPeriod, &error);
    if (submitted == HA_OK && waited == HA_OK && call.gpu)
      waited = ha_join_stream(engine_, handle, call.gpu->stream, &error);
    if (submitted == HA_OK && waited == HA_OK) ha_release(engine_, handle);
  }
  Check(submitted, error);
  if (waited == HA_OK) return;
  kept_.emplace(handle, std::move(keep));
  try {
    Wait(handle, std::nullopt);
    if (call.gpu) JoinStream(handle, reinterpret_cast<uintptr_t>(call.gpu->stream));
  } catch (...) {
    Release(handle);  // after an exception of a signal's handler the call is still in flight
    throw;
  }
  Release(handle);
}

bool Engine::ReduceArray(const py::object& input, const py::object& output, const py::object& name,
                         int op, int process_set) {
  const bool named = !name.is_none();
  if (named && !PyUnicode_CheckExact(name.ptr())) return false;
  const PlainArray from(input, input.is(output));
  const PlainArray to(output, true);
  if (!from.dtype() || from.dtype() != to.dtype() || !from.HasShapeOf(to)) return false;
  std::string full_name;
  if (named) full_name = "allreduce." + name.cast<std::string>();
  const ha_tensor row{named ? full_name.c_str() : nullptr,
                      from.view().buf,
                      to.view().buf,
                      from.view().shape,
                      from.view().ndim,
                      *from.dtype()};
  ha_call call{};
  call.collective = HA_ALLREDUCE;
  call.process_set = process_set;
  call.op = op;
  call.prescale = 1;
  call.postscale = 1;
  RunCall(call, {&row, 1}, input.is(output) ? input : py::make_tuple(input, output));
  return true;
}

void Engine::Barrier(int process_set) {
  ha_call call{};
  call.collective = HA_BARRIER;
  call.process_set = process_set;
  RunCall(call, {}, py::none());
}

void Engine::JoinStream(uint64_t handle, uintptr_t stream) {
  Call([&](ha_error* error) {
    return ha_join_stream(engine_, handle, reinterpret_cast<void*>(stream), error);
  });
}

bool Engine::Poll(uint64_t handle) {
  int state = 0;
  {
    const py::gil_scoped_release release;
    state = ha_poll(engine_, handle);
  }
  if (state < 0) throw py::key_error("unknown handle " + std::to_string(handle));
  return state == 1;
}

void Engine::Wait(uint64_t handle, std::optional<double> timeout) {
  double left = timeout.value_or(-1);
  for (;;) {
    const double slice = left < 0 ? kSignalPeriod : std::min(left, kSignalPeriod);
    ha_error error = NoError();
    int code = HA_OK;
    {
      const py::gil_scoped_release release;
      code = ha_wait(engine_, handle, slice, &error);
    }
    if (code == HA_OK) return;
    const bool complete = code != HA_TIMEOUT || ha_poll(engine_, handle) != 0;
    if (complete) {
      // It may have completed between the two calls: get its outcome.
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

void Engine::Finish(uint64_t handle) {
  ha_error error = NoError();
  int code = HA_OK;
  {
    const WithoutGil released;
    code = ha_wait(engine_, handle, kSignalPeriod, &error);
    if (code == HA_OK) ha_release(engine_, handle);
  }
  if (code == HA_OK) {
    kept_.erase(handle);
    return;
  }
  Wait(handle, std::nullopt);
  Release(handle);
}

void Engine::Release(uint64_t handle) {
  // After ha_release of a call in flight, its end, when its tensors are free, could not be seen.
  if (ha_poll(engine_, handle) == 0) {
    left_.push_back(handle);
    return;
  }
  ha_release(engine_, handle);
  kept_.erase(handle);
}

void Engine::ReleaseLeft() {
  for (const uint64_t handle : std::exchange(left_, {})) Release(handle);
}

std::vector<std::unique_ptr<Output>> Engine::Outputs(uint64_t handle) const {
  std::vector<std::unique_ptr<Output>> outputs;
  for (size_t index = 0;; ++index) {
    ha_output found{};
    if (ha_result(engine_, handle, index, &found, nullptr) != HA_OK) break;
    auto output = std::make_unique<Output>();
    output->shape.assign(found.shape, found.shape + found.ndim);
    output->dtype = found.dtype;
    if (found.received_splits) {
      output->received_splits.assign(found.received_splits, found.received_splits + found.nsplits);
      output->has_splits = true;
    }
    output->bytes = found.bytes;
    if (found.on_gpu != 0) {
      output->copy_to = [engine = engine_, handle, index, bytes = found.bytes](uintptr_t to,
                                                                               uintptr_t stream) {
        Call([&](ha_error* error) {
          return ha_copy_result(engine, handle, index, 0, bytes, reinterpret_cast<void*>(to),
                                reinterpret_cast<void*>(stream), error);
        });
      };
    } else {
      output->data = ha_take(engine_, handle, index);
      if (!output->data) continue;  // it is the caller's memory
    }
    outputs.push_back(std::move(output));
  }
  return outputs;
}

bool Engine::ArenaContains(uintptr_t pointer) const {
  return ha_arena_contains(engine_, reinterpret_cast<const void*>(pointer)) != 0;
}

void Engine::ServeReadings(int listener) {
  Call([&](ha_error* error) { return ha_serve_readings(engine_, listener, error); });
}

std::tuple<uint64_t, uint64_t, uint64_t, uint32_t> Engine::Tuned() const {
  ha_tuned_values values;
  ha_tuned(engine_, &values);
  return {values.fusion_threshold, values.last_arriver_bytes, values.window_bytes,
          values.algorithm};
}

void Engine::Tune(uint64_t fusion_threshold, uint64_t last_arriver_bytes, uint64_t window_bytes,
                  uint32_t algorithm, uint64_t trials, uint64_t kept, const std::string& story) {
  const ha_tuned_values values{fusion_threshold, last_arriver_bytes, window_bytes, algorithm};
  Call([&](ha_error* error) {
    return ha_tune(engine_, &values, trials, kept, story.c_str(), error);
  });
}

void Engine::StartTimeline(const std::string& path, bool mark_cycles) {
  Call([&](ha_error* error) {
    return ha_timeline_start(engine_, path.c_str(), mark_cycles, error);
  });
}

void Engine::StopTimeline() {
  Call([&](ha_error* error) { return ha_timeline_stop(engine_, error); });
}

std::unordered_map<std::string, uint64_t> Engine::Counters() const {
  std::unordered_map<std::string, uint64_t> counters;
  for (const auto& [name, value] :
       Pairs([&](char* text, size_t capacity) { return ha_counters(engine_, text, capacity); })) {
    counters[name] = std::stoull(value);
  }
  return counters;
}

uint64_t Engine::SubmitCall(const ha_call& call, std::span<const ha_tensor> tensors,
                            py::object keep) {
  if (!left_.empty()) ReleaseLeft();
  ha_handle handle = 0;
  Call([&](ha_error* error) {
    return ha_submit(engine_, &call, tensors.data(), tensors.size(), nullptr, nullptr, &handle,
                     error);
  });
  if (!keep.is_none()) kept_.emplace(handle, std::move(keep));
  return handle;
}

}  // namespace horoacc::python
