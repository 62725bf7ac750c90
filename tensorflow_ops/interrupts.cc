#include "interrupts.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <type_traits>
#include <utility>

namespace horoacc {
namespace {

// Python's functions, found by name, so that the ops are built without Python's headers.
struct Python {
  int (*ensure)() = nullptr;
  void (*release)(int) = nullptr;
  int (*check_signals)() = nullptr;
  void (*fetch)(void**, void**, void**) = nullptr;
  void (*restore)(void*, void*, void*) = nullptr;

  Python() {
    const auto find = [](auto* function, const char* name) {
      *function =
          reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(RTLD_DEFAULT, name));
    };
    find(&ensure, "PyGILState_Ensure");
    find(&release, "PyGILState_Release");
    find(&check_signals, "PyErr_CheckSignals");
    find(&fetch, "PyErr_Fetch");
    find(&restore, "PyErr_Restore");
  }
  [[nodiscard]] bool there() const {
    return ensure != nullptr && release != nullptr && check_signals != nullptr &&
           fetch != nullptr && restore != nullptr;
  }
};

const Python& ThePython() {
  static const Python python;
  return python;
}

// Guarded by the GIL.
struct Raised {
  void* type = nullptr;
  void* value = nullptr;
  void* traceback = nullptr;
};

Raised& WhatWasRaised() {
  static Raised raised;
  return raised;
}

struct Left {
  EngineRef engine;
  ha_handle handle;
  std::vector<tensorflow::Tensor> memory;
};

// Process-wide, because the call's kernel may be freed.
struct AllLeft {
  std::atomic<bool> any{false};
  std::mutex mutex;
  std::vector<Left> calls;
};

AllLeft& TheLeft() {
  static auto* const left = new AllLeft;  // threads of TensorFlow outlive static objects
  return *left;
}

}  // namespace

bool HandlersRaise() {
  const Python& python = ThePython();
  if (!python.there()) return false;
  const int state = python.ensure();
  const bool raised = python.check_signals() != 0;
  if (raised) {
    Raised& what = WhatWasRaised();
    python.fetch(&what.type, &what.value, &what.traceback);
  }
  python.release(state);
  return raised;
}

void LeaveInFlight(EngineRef engine, ha_handle handle, std::vector<tensorflow::Tensor> memory) {
  AllLeft& left = TheLeft();
  const std::lock_guard lock(left.mutex);
  left.calls.push_back({std::move(engine), handle, std::move(memory)});
  left.any.store(true, std::memory_order_release);
}

void ReleaseLeft() {
  AllLeft& left = TheLeft();
  if (!left.any.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(left.mutex);
  std::erase_if(left.calls, [](const Left& call) {
    if (ha_poll(call.engine.get(), call.handle) == 0) return false;
    ha_release(call.engine.get(), call.handle);
    return true;
  });
  left.any.store(!left.calls.empty(), std::memory_order_release);
}

}  // namespace horoacc

extern "C" {

// Raises the exception with which a signal's handler ended a wait, if one did. Called with the GIL.
HA_API void ha_tensorflow_raise() {
  horoacc::Raised& raised = horoacc::WhatWasRaised();
  if (raised.type == nullptr) return;
  const horoacc::Raised what = std::exchange(raised, {});
  horoacc::ThePython().restore(what.type, what.value, what.traceback);
}

}  // extern "C"
