// The constructor of process groups for Python.
#include "group_backend.h"

#include <torch/csrc/utils/pybind.h>

#include "api/horoacc.h"

namespace horoacc {

GroupBackend::GroupBackend(std::shared_ptr<Group> group)
    : Backend(group->rank(), group->size()),
      group_(std::move(group)),
      options_(c10::make_intrusive<Options>(
          "horoacc",
          std::chrono::milliseconds(static_cast<int64_t>(group_->limit_seconds() * 1000)))) {}

void GroupBackend::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  group_->set_limit_seconds(std::chrono::duration<double>(timeout).count());
}

// The ranks make their new engine in Python, as they made the first one.
c10::intrusive_ptr<c10d::Backend> GroupBackend::shrink(const std::vector<int64_t>& excluded,
                                                       int /*flags*/,
                                                       const c10::intrusive_ptr<Options>& options) {
  const double seconds =
      options ? std::chrono::duration<double>(options->timeout).count() : group_->limit_seconds();
  const pybind11::gil_scoped_acquire gil;
  return pybind11::module_::import("horoacc.torch.shrink")
      .attr("shrink")(getGroupUid(), excluded, seconds, group_->backend())
      .cast<c10::intrusive_ptr<Backend>>();
}

}  // namespace horoacc

extern "C" {

// A new reference to torch's Python object for a backend over a process set that this rank has
// joined, or NULL with a Python error. The caller holds the GIL.
HA_API PyObject* ha_torch_backend(ha_engine* engine, int32_t process_set, const int32_t* ranks,
                                  size_t count, int rank, double limit_seconds, const char* name,
                                  const char* called) {
  try {
    auto group = std::make_shared<horoacc::Group>(engine, process_set,
                                                  std::vector<int32_t>(ranks, ranks + count), rank,
                                                  limit_seconds, name, called);
    c10::intrusive_ptr<c10d::Backend> backend =
        c10::make_intrusive<horoacc::GroupBackend>(std::move(group));
    return pybind11::cast(std::move(backend)).release().ptr();
  } catch (pybind11::error_already_set& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}
}
