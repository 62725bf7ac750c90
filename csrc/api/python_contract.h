#pragma once
// The conventions of the C contract in Python's terms: errors are exceptions, and calls that may
// wait release the GIL.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <string>
#include <unordered_map>

#include "api/horoacc.h"

namespace horoacc::python {

/// Releases the GIL for as long as it lives, in less time than pybind11's class.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(state_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const state_;
};

/// An empty error. Its text, of some kilobytes, is not zeroed.
inline ha_error NoError() {
  ha_error error;
  error.kind = HA_OK;
  error.culprit = -1;
  error.collective = -1;
  error.message[0] = error.host[0] = error.tensor[0] = error.hint[0] = '\0';
  return error;
}

/// Raises the exception that horoacc.errors.from_core makes of the error.
[[noreturn]] inline void Raise(const ha_error& error) {
  const pybind11::object raised =
      pybind11::module_::import("horoacc.errors")
          .attr("from_core")(error.kind, std::string(error.message), error.culprit,
                             std::string(error.host), std::string(error.tensor), error.collective,
                             std::string(error.hint));
  PyErr_SetObject(pybind11::type::of(raised).ptr(), raised.ptr());
  throw pybind11::error_already_set();
}

inline void Check(int code, const ha_error& error) {
  if (code != HA_OK) Raise(error);
}

/// Calls a function of the contract without the GIL, with an ha_error to fill; raises its error.
template <typename Function>
void Call(Function function) {
  ha_error error = NoError();
  int code = HA_OK;
  {
    const WithoutGil released;
    code = function(&error);
  }
  if (PyErr_Occurred() != nullptr) throw pybind11::error_already_set();  // of a signal's handler
  Check(code, error);
}

/// The key=value lines of a function like ha_counters.
template <typename Fill>
std::unordered_map<std::string, std::string> Pairs(Fill fill) {
  std::string text(fill(nullptr, 0), '\0');
  text.resize(text.size() + 256);  // counters may grow by a digit in between
  fill(text.data(), text.size());
  std::unordered_map<std::string, std::string> pairs;
  const size_t length = std::char_traits<char>::length(text.c_str());
  for (size_t at = 0; at < length;) {
    const size_t end = std::min(text.find('\n', at), length);
    const std::string line = text.substr(at, end - at);
    const size_t equals = line.find('=');
    pairs[line.substr(0, equals)] = line.substr(equals + 1);
    at = end + 1;
  }
  return pairs;
}

}  // namespace horoacc::python
