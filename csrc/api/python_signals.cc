// The signal by which a user asks for a flight record.
#include <signal.h>

#include <atomic>

#include "api/python_engine.h"

namespace py = pybind11;

namespace horoacc::python {
namespace {

// Global, because a signal's handler can reach nothing else; it belongs to the process, as the
// handler does.
std::atomic<uint32_t> record_requests{0};  // NOLINT(cppcoreguidelines-avoid-non-const-*)
static_assert(std::atomic<uint32_t>::is_always_lock_free);

void CountRequest(int /*signal*/) { record_requests.fetch_add(1, std::memory_order_relaxed); }

// Whether the signal has no handler, in Python or not, and is not ignored.
bool IsFree(int signal) {
  struct sigaction action{};
  return sigaction(signal, nullptr, &action) == 0 && (action.sa_flags & SA_SIGINFO) == 0 &&
         action.sa_handler == SIG_DFL;
}

bool HearRequests(int signal) {
  if (!IsFree(signal)) return false;
  struct sigaction action{};
  action.sa_handler = CountRequest;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  return sigaction(signal, &action, nullptr) == 0;
}

// Does nothing if other code has taken the signal since.
void EndRequests(int signal) {
  struct sigaction action{};
  if (sigaction(signal, nullptr, &action) != 0 || action.sa_handler != CountRequest) return;
  action.sa_handler = SIG_DFL;
  sigaction(signal, &action, nullptr);
}

}  // namespace

uint32_t RecordRequests() { return record_requests.load(std::memory_order_relaxed); }

void BindSignals(py::module_& module) {
  module.def("signal_is_free", IsFree, py::arg("signal"));
  module.def("hear_requests", HearRequests, py::arg("signal"));
  module.def("end_requests", EndRequests, py::arg("signal"));
}

}  // namespace horoacc::python
