#pragma once
// Over the contract: calls of Python's engine, for a binding that reads a framework's tensors
// itself.
#include <Python.h>

#include "api/horoacc.h"

namespace horoacc {

/// What the capsule `Engine.calls` points to. A function that returns false has set Python's
/// exception. All want the GIL, and release it while they work. `keep` is kept alive until the
/// engine is done with the call, also if its caller was interrupted.
struct EngineCalls {
  static constexpr const char* kName = "horoacc._core.EngineCalls";

  void* engine;
  ha_engine* core;
  /// The handle is one of Python's engine.
  bool (*submit)(void* engine, const ha_call* call, const ha_tensor* tensors, size_t count,
                 PyObject* keep, ha_handle* handle);
  /// Submits and waits; the handlers of signals run meanwhile.
  bool (*run)(void* engine, const ha_call* call, const ha_tensor* tensors, size_t count,
              PyObject* keep);
  /// Waits; the handlers of signals run meanwhile. Where it returns false the handle is released.
  bool (*wait)(void* engine, ha_handle handle);
  void (*release)(void* engine, ha_handle handle);
};

}  // namespace horoacc
