// The plain case of hvd's calls, from Python's arguments to one call of the engine.
//
// Plain are dense, contiguous tensors in the host's memory, and arguments that need no conversion.
// Whatever else, wrong arguments among it, is left to horoacc/collectives.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include <exception>
#include <limits>
#include <string>

#include "api/horoacc.h"
#include "api/python_engine_calls.h"
#include "core_tensor.h"

namespace horoacc {
namespace {

// The arguments of the function that Python gets, in order.
enum Argument {
  kCollective,  // by ha_collective, one of NameOf
  kTensors,     // a tensor; of a grouped call a list or tuple of them
  kName,        // None or a string
  kOp,          // of a reduction: an integer by ha_op; None is Average
  kRoot,
  kPrescale,
  kPostscale,
  kProcessSet,  // its number; None: the call cannot be made
  kGrouped,
  kInPlace,  // of allreduce and broadcast
  kWait,     // or give a handle; allreduce and broadcast can
  kArguments
};

const char* NameOf(int32_t collective) {
  switch (collective) {
    case HA_ALLREDUCE:
      return "allreduce.";
    case HA_BROADCAST:
      return "broadcast.";
    case HA_ALLGATHER:
      return "allgather.";
    case HA_REDUCESCATTER:
      return "reducescatter.";
    case HA_ALLTOALL:
      return "alltoall.";
    default:
      return nullptr;
  }
}

// Tensors that autograd's transformations or a tracer stand behind have keys of their own, as have
// conjugated views and those without memory.
bool IsPlain(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet kOrdinary =
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;
  return tensor.key_set() - kOrdinary == c10::DispatchKeySet(c10::DispatchKey::CPU) &&
         tensor.is_contiguous() && CoreType(tensor.scalar_type()) >= 0;
}

bool ReadInteger(PyObject* given, int32_t& value) {
  if (!PyLong_CheckExact(given)) return false;
  int overflow = 0;
  const long found = PyLong_AsLongAndOverflow(given, &overflow);
  value = static_cast<int32_t>(found);
  return overflow == 0 && found == value;
}

bool ReadFactor(PyObject* given, double& value) {
  if (!PyFloat_CheckExact(given)) return false;
  value = PyFloat_AS_DOUBLE(given);
  return true;
}

// A result in memory that the engine allocated, of a complete call.
at::Tensor TakeOutput(ha_engine* engine, ha_handle handle, size_t index, at::ScalarType type) {
  ha_output found{};
  TORCH_CHECK(ha_result(engine, handle, index, &found, nullptr) == HA_OK, "no result");
  const c10::IntArrayRef shape(found.shape, static_cast<size_t>(found.ndim));
  if (found.bytes == 0) return at::empty(shape, type);
  return at::from_blob(ha_take(engine, handle, index), shape, ha_free, type);
}

class PlainCall {
 public:
  explicit PlainCall(PyObject* const* arguments) : arguments_(arguments) {}

  // False: it is not plain. Throws if a result's memory cannot be had.
  bool Read();
  // Gives the result, or the handle and the result; null, and Python's exception, after an error.
  PyObject* Make(const EngineCalls& calls);

 private:
  [[nodiscard]] bool HasOwnOutput() const {
    return call_.collective == HA_ALLREDUCE || call_.collective == HA_BROADCAST;
  }
  PyObject* MakeWithOutputs(const EngineCalls& calls);
  bool ReadOp();
  bool ReadName();
  bool Add(PyObject* given);

  PyObject* const* const arguments_;
  ha_call call_{};
  std::string name_;  // of the call, or of a group's first member
  bool in_place_ = false;
  c10::SmallVector<ha_tensor, 1> rows_;
  c10::SmallVector<at::Tensor, 1> outputs_;
};

bool PlainCall::ReadOp() {
  const bool scatters = call_.collective == HA_REDUCESCATTER;
  const bool reduces = call_.collective == HA_ALLREDUCE || scatters;
  // Without a reduction as Engine.submit: a rank's call may be plain and another's not.
  call_.op = reduces ? HA_AVERAGE : HA_SUM;
  if (!reduces || arguments_[kOp] == Py_None) return !scatters;
  if (!ReadInteger(arguments_[kOp], call_.op)) return false;
  if (scatters) return call_.op == HA_AVERAGE || call_.op == HA_SUM;
  return call_.op >= HA_AVERAGE && call_.op <= HA_PRODUCT;  // and Adasum, in between
}

bool PlainCall::ReadName() {
  PyObject* const given = arguments_[kName];
  if (given == Py_None) return true;
  if (!PyUnicode_CheckExact(given)) return false;
  Py_ssize_t length = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(given, &length);
  if (text == nullptr) {
    PyErr_Clear();
    return false;
  }
  name_ = NameOf(call_.collective);
  name_.append(text, static_cast<size_t>(length));
  if (call_.grouped != 0) name_ += "_1of" + std::to_string(rows_.size());
  rows_[0].name = name_.c_str();  // the core makes the other members' of it
  return true;
}

bool PlainCall::Add(PyObject* given) {
  if (!THPVariable_CheckExact(given)) return false;
  const at::Tensor& tensor = THPVariable_Unpack(given);
  if (!IsPlain(tensor)) return false;
  void* output = nullptr;
  if (in_place_) {
    output = tensor.mutable_data_ptr();
  } else if (HasOwnOutput()) {
    // Not by torch's dispatcher, which takes longer than all else here.
    const at::Tensor result = at::detail::empty_cpu(tensor.sizes(), tensor.scalar_type());
    output = outputs_.emplace_back(result).mutable_data_ptr();
  }
  const c10::IntArrayRef shape = tensor.sizes();
  rows_.push_back({nullptr, in_place_ ? output : tensor.const_data_ptr(), output, shape.data(),
                   static_cast<int32_t>(shape.size()), CoreType(tensor.scalar_type())});
  return true;
}

bool PlainCall::Read() {
  in_place_ = arguments_[kInPlace] == Py_True;
  if (!ReadInteger(arguments_[kCollective], call_.collective) ||
      NameOf(call_.collective) == nullptr || !ReadOp() ||
      !ReadInteger(arguments_[kRoot], call_.root) ||
      !ReadFactor(arguments_[kPrescale], call_.prescale) ||
      !ReadFactor(arguments_[kPostscale], call_.postscale) ||
      !ReadInteger(arguments_[kProcessSet], call_.process_set)) {
    return false;
  }
  PyObject* const given = arguments_[kTensors];
  if (arguments_[kGrouped] != Py_True) return Add(given) && ReadName();
  if (!PyList_CheckExact(given) && !PyTuple_CheckExact(given)) return false;
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(given);
  if (count == 0) return false;
  call_.grouped = 1;
  rows_.reserve(static_cast<size_t>(count));
  if (!in_place_) outputs_.reserve(static_cast<size_t>(count));
  for (Py_ssize_t index = 0; index < count; ++index) {
    if (!Add(PySequence_Fast_GET_ITEM(given, index))) return false;
  }
  return ReadName();
}

PyObject* PlainCall::MakeWithOutputs(const EngineCalls& calls) {
  const bool grouped = call_.grouped != 0;
  // The caller may change its list.
  THPObjectPtr keep(grouped ? PySequence_List(arguments_[kTensors])
                            : Py_NewRef(arguments_[kTensors]));
  ha_handle handle = 0;
  if (!keep || !calls.submit(calls.engine, &call_, rows_.data(), rows_.size(), keep, &handle) ||
      !calls.wait(calls.engine, handle)) {
    return nullptr;
  }
  THPObjectPtr results(PyList_New(static_cast<Py_ssize_t>(rows_.size())));
  try {
    for (size_t index = 0; results && index < rows_.size(); ++index) {
      PyObject* const given = grouped ? PyList_GET_ITEM(keep.get(), index) : keep.get();
      PyObject* const wrapped = THPVariable_Wrap(
          TakeOutput(calls.core, handle, index, THPVariable_Unpack(given).scalar_type()));
      if (wrapped == nullptr) results = nullptr;
      if (results) PyList_SET_ITEM(results.get(), static_cast<Py_ssize_t>(index), wrapped);
    }
  } catch (const std::exception& thrown) {
    PyErr_SetString(PyExc_RuntimeError, thrown.what());
    results = nullptr;
  }
  calls.release(calls.engine, handle);
  return results.release();
}

PyObject* PlainCall::Make(const EngineCalls& calls) {
  if (!HasOwnOutput()) return MakeWithOutputs(calls);
  PyObject* const given = arguments_[kTensors];
  THPObjectPtr result;
  THPObjectPtr kept;  // beside the result
  if (call_.grouped == 0) {
    result = in_place_ ? Py_NewRef(given) : THPVariable_Wrap(outputs_[0]);
    if (!in_place_) kept = Py_NewRef(given);
  } else {
    // The caller may change its list.
    THPObjectPtr members(PySequence_List(given));
    if (in_place_) {
      result = std::move(members);
    } else {
      kept = std::move(members);
      result = PyList_New(static_cast<Py_ssize_t>(outputs_.size()));
      for (size_t index = 0; result && index < outputs_.size(); ++index) {
        PyObject* const output = THPVariable_Wrap(outputs_[index]);
        if (output == nullptr) return nullptr;
        PyList_SET_ITEM(result.get(), static_cast<Py_ssize_t>(index), output);
      }
    }
  }
  THPObjectPtr keep;
  if (result) keep = kept ? PyTuple_Pack(2, kept.get(), result.get()) : Py_NewRef(result.get());
  if (!keep) return nullptr;
  if (arguments_[kWait] == Py_True) {
    const bool done = calls.run(calls.engine, &call_, rows_.data(), rows_.size(), keep);
    return done ? result.release() : nullptr;
  }
  ha_handle handle = 0;
  if (!calls.submit(calls.engine, &call_, rows_.data(), rows_.size(), keep, &handle))
    return nullptr;
  return Py_BuildValue("KN", static_cast<unsigned long long>(handle), result.release());
}

// None: the call is not plain, and nothing was submitted.
PyObject* Call(PyObject* capsule, PyObject* const* arguments, Py_ssize_t count) {
  const auto* const calls =
      static_cast<const EngineCalls*>(PyCapsule_GetPointer(capsule, EngineCalls::kName));
  if (calls == nullptr) return nullptr;
  if (count != kArguments) {
    PyErr_Format(PyExc_TypeError, "a plain call has %d arguments", static_cast<int>(kArguments));
    return nullptr;
  }
  PlainCall call(arguments);
  try {
    if (!call.Read()) Py_RETURN_NONE;
  } catch (const std::exception&) {
    Py_RETURN_NONE;  // Python's way tells the other ranks of it
  }
  return call.Make(*calls);
}

}  // namespace
}  // namespace horoacc

extern "C" {

// A function of Python's that makes the plain calls of `Engine.calls`.
HA_API PyObject* ha_torch_plain_call(PyObject* capsule) {
  static PyMethodDef method = {
      "plain_call",
      // METH_FASTCALL's functions have another type than Python declares.
      reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&horoacc::Call)), METH_FASTCALL,
      nullptr};
  return PyCFunction_NewEx(&method, capsule, nullptr);
}

}  // extern "C"
