// Submits each gradient to the engine when autograd has accumulated it, without Python.
//
// The fast case of horoacc/reduction.py: one backward pass a step, no compression, no groups, dense
// gradients. Python submits all other gradients at synchronize().
#include <ATen/core/Tensor.h>
#include <pthread.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "api/engine_ref.h"
#include "api/horoacc.h"
#include "core_tensor.h"
#include "python_calls.h"

namespace horoacc {

using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<at::Tensor>()));

struct Gradient {
  at::Tensor param;
  Accumulator accumulator;  // autograd itself only has a weak reference to it
  uintptr_t hook = 0;
  std::string name;
  at::Tensor sent;                 // reduced in place; kept until no peer accesses it
  c10::Storage memory;             // of `sent`, which the program may give another
  int64_t version = 0;             // of `sent` when it was submitted
  std::atomic<bool> fired{false};  // since the last restart
  // Of a gradient on a GPU, which is no part of the plan:
  ha_handle handle = 0;
  bool in_flight = false;
  // The other ranks got this error: the gradient must not be submitted again. An error has some
  // kilobytes.
  std::unique_ptr<ha_error> refused;
};

}  // namespace horoacc

struct ha_torch_hooks {
  explicit ha_torch_hooks(ha_engine* used) : ref(used) {}

  PyObject* compiled = nullptr;  // the caller's: see ha_torch_hooks_create
  const horoacc::EngineRef ref;
  ha_engine* const engine = ref.get();
  ha_call call{};
  ha_locked_plan* plan = nullptr;           // of the gradients in the host's memory, by index
  std::string too_often;                    // what a second gradient between two restarts raises
  std::deque<horoacc::Gradient> gradients;  // which stay where they are
  ptrdiff_t changed = -1;  // the first that the program has changed while it was reduced
  // Gradients in flight, so that a step need not ask the plan for each. Wrong between a refusal,
  // with which the plan may have dropped others, and the end of the step.
  std::atomic<size_t> in_flight{0};
  std::atomic<bool> miscounted{false};
};

namespace horoacc {
namespace {

// In a forked child the engine's threads do not exist, and its locks may be locked for ever.
std::atomic<bool> forked{false};

void WatchForks() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });
  });
}

bool InFlight(const ha_torch_hooks& hooks, size_t index) {
  return hooks.gradients[index].in_flight || ha_locked_plan_in_flight(hooks.plan, index) != 0;
}

bool AllInFlight(const ha_torch_hooks& hooks) {
  return !hooks.miscounted.load(std::memory_order_relaxed) &&
         hooks.in_flight.load(std::memory_order_relaxed) == hooks.gradients.size();
}

void Submit(ha_torch_hooks& hooks, size_t index) {
  Gradient& gradient = hooks.gradients[index];
  if (forked.load(std::memory_order_relaxed)) return;  // Python raises at synchronize()
  const at::Tensor& grad = gradient.param.grad();
  if (!grad.defined() || (!grad.is_cpu() && !grad.is_cuda()) || grad.layout() != c10::kStrided ||
      !grad.is_contiguous() || grad.is_neg() || grad.is_conj()) {
    return;
  }
  const int dtype = CoreType(grad.scalar_type());
  if (dtype < 0) return;
  const c10::IntArrayRef shape = grad.sizes();
  void* data = grad.mutable_data_ptr();
  const ha_tensor tensor{
      gradient.name.c_str(), data, data, shape.data(), static_cast<int32_t>(shape.size()), dtype};
  ha_error error;  // filled if the call fails; not zeroed, for it has some kilobytes
  const std::optional<c10::Stream> stream = StreamOf(grad);
  if (!stream) {
    gradient.sent = grad;
    gradient.memory = grad.storage();
    gradient.version = grad._version();
    // After an error of which the other ranks have not heard Python submits the gradient again.
    if (ha_locked_plan_submit(hooks.plan, index, &tensor, &error) == HA_OK)
      hooks.in_flight.fetch_add(1, std::memory_order_relaxed);
    else
      hooks.miscounted.store(true, std::memory_order_relaxed);
    return;
  }
  ha_call call = hooks.call;
  const ha_gpu gpu = GpuOf(*stream);
  call.gpu = &gpu;
  if (ha_submit(hooks.engine, &call, &tensor, 1, nullptr, nullptr, &gradient.handle, &error) ==
      HA_OK) {
    gradient.sent = grad;
    gradient.version = grad._version();
    gradient.in_flight = true;
    hooks.in_flight.fetch_add(1, std::memory_order_relaxed);
  } else if (error.kind == HA_INVALID || error.kind == HA_UNSUPPORTED) {
    gradient.refused = std::make_unique<ha_error>(error);
  }
  // After other errors Python submits the gradient again, and raises.
}

// False if this is the second time since the last restart.
bool Accumulated(ha_torch_hooks& hooks, size_t index) {
  if (hooks.gradients[index].fired.exchange(true, std::memory_order_relaxed)) return false;
  Submit(hooks, index);
  return true;
}

class OnAccumulated final : public torch::autograd::FunctionPostHook {
 public:
  OnAccumulated(ha_torch_hooks* hooks, size_t index) : hooks_(hooks), index_(index) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    if (!Accumulated(*hooks_, index_)) RaiseAssertion(hooks_->too_often.c_str());
    return outputs;
  }

  // Compiled autograd makes a graph of the backward pass, which can call only Python hooks. It asks
  // for them here, with the GIL.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    PyObject* const hook = PyObject_CallFunction(hooks_->compiled, "n", index_);
    if (hook == nullptr) throw pybind11::error_already_set();
    args.add_post_hook(c10::SafePyObject(hook, getPyInterpreter()));
  }

 private:
  ha_torch_hooks* hooks_;
  const size_t index_;
};

// HA_TIMEOUT may mean that the gradient is still in flight.
int Wait(ha_torch_hooks& hooks, size_t index, double seconds, ha_error* error) {
  Gradient& gradient = hooks.gradients[index];
  if (!gradient.in_flight) return ha_locked_plan_wait(hooks.plan, index, seconds, error);
  int code = ha_wait(hooks.engine, gradient.handle, seconds, error);
  if (code == HA_TIMEOUT) {
    if (ha_poll(hooks.engine, gradient.handle) == 0) return code;
    code = ha_wait(hooks.engine, gradient.handle, 0, error);
  }
  gradient.in_flight = false;
  if (const auto stream = StreamOf(gradient.sent); stream && code == HA_OK)
    code = ha_join_stream(hooks.engine, gradient.handle, HandleOf(*stream), error);
  ha_release(hooks.engine, gradient.handle);
  return code;
}

// Puts the reduced values into the present gradient, which may be another tensor by now.
void StoreResult(Gradient& gradient) {
  at::Tensor& grad = gradient.param.mutable_grad();
  if (!grad.defined()) {
    grad = gradient.sent;
  } else if (!grad.is_same(gradient.sent)) {
    const c10::NoGradGuard no_grad;
    grad.copy_(gradient.sent);
  }
  gradient.sent.reset();
  gradient.memory = {};
}

}  // namespace
}  // namespace horoacc

extern "C" {

// `params` are addresses of tensors (TensorImpl), leaves. Those that require no gradient now have
// no hook: should they get one later, ha_torch_hooks_submit submits it. `too_often` is the text of
// the AssertionError for a parameter whose gradient is computed twice before a restart. `compiled`,
// which the caller keeps, returns for the index of a parameter the Python hook that calls
// ha_torch_hooks_accumulated.
HA_API ha_torch_hooks* ha_torch_hooks_create(ha_engine* engine, int process_set, int op,
                                             double prescale, double postscale,
                                             c10::TensorImpl* const* params,
                                             const char* const* names, size_t count,
                                             const char* too_often, PyObject* compiled) {
  horoacc::WatchForks();
  auto hooks = std::make_unique<ha_torch_hooks>(engine);  // of which the caller has a ref
  hooks->too_often = too_often;
  hooks->compiled = compiled;
  hooks->call.collective = HA_ALLREDUCE;
  hooks->call.process_set = process_set;
  hooks->call.op = op;
  hooks->call.prescale = prescale;
  hooks->call.postscale = postscale;
  hooks->plan = ha_locked_plan_create(engine, &hooks->call, names, count);
  for (size_t index = 0; index < count; ++index) {
    horoacc::Gradient& gradient = hooks->gradients.emplace_back();
    gradient.param = at::Tensor(
        c10::intrusive_ptr<c10::TensorImpl,
                           c10::UndefinedTensorImpl>::unsafe_reclaim_from_nonowning(params[index]));
    gradient.name = names[index];
    gradient.accumulator = torch::autograd::impl::grad_accumulator(gradient.param);
    if (!gradient.accumulator) continue;  // it is frozen
    gradient.hook = gradient.accumulator->add_post_hook(
        std::make_unique<horoacc::OnAccumulated>(hooks.get(), index));
  }
  return hooks.release();
}

// The hook of a parameter. 0: this is its second gradient since the last restart.
HA_API int ha_torch_hooks_accumulated(ha_torch_hooks* hooks, size_t index) {
  return horoacc::Accumulated(*hooks, index) ? 1 : 0;
}

// Submits a gradient that no hook has submitted.
HA_API void ha_torch_hooks_submit(ha_torch_hooks* hooks, size_t index) {
  horoacc::Submit(*hooks, index);
}

// Whether a gradient was accumulated since the last restart.
HA_API int ha_torch_hooks_touched(const ha_torch_hooks* hooks) {
  return std::ranges::any_of(hooks->gradients, [](const horoacc::Gradient& gradient) {
    return gradient.fired.load(std::memory_order_relaxed);
  });
}

HA_API int ha_torch_hooks_in_flight(const ha_torch_hooks* hooks) {
  if (!hooks->miscounted.load(std::memory_order_relaxed))
    return hooks->in_flight.load(std::memory_order_relaxed) > 0 ? 1 : 0;
  for (size_t index = 0; index < hooks->gradients.size(); ++index) {
    if (horoacc::InFlight(*hooks, index)) return 1;
  }
  return 0;
}

// Writes the indices of gradients that were not submitted, and returns their number.
HA_API size_t ha_torch_hooks_missing(const ha_torch_hooks* hooks, size_t* indices) {
  size_t count = 0;
  if (horoacc::AllInFlight(*hooks)) return count;
  for (size_t index = 0; index < hooks->gradients.size(); ++index) {
    if (!horoacc::InFlight(*hooks, index) && !hooks->gradients[index].refused)
      indices[count++] = index;
  }
  return count;
}

// Waits until every submitted gradient is reduced, at most `seconds` for each. 1: call again; 0:
// all are complete, and `first` has the error of the first that failed, if any.
HA_API int ha_torch_hooks_wait(ha_torch_hooks* hooks, double seconds, ha_error* first) {
  ha_error error;  // filled if a call fails
  for (size_t index = 0; index < hooks->gradients.size(); ++index) {
    horoacc::Gradient& gradient = hooks->gradients[index];
    if (const auto refused = std::move(gradient.refused); refused && first->kind == HA_OK)
      *first = *refused;
    if (!horoacc::InFlight(*hooks, index)) continue;
    const int code = horoacc::Wait(*hooks, index, seconds, &error);
    if (code == HA_TIMEOUT && horoacc::InFlight(*hooks, index)) return 1;
    hooks->in_flight.fetch_sub(1, std::memory_order_relaxed);
    if (code == HA_OK) {
      // The engine itself writes past torch, which counts the writes of the program.
      if (hooks->changed < 0 && gradient.sent._version() != gradient.version)
        hooks->changed = static_cast<ptrdiff_t>(index);
      horoacc::StoreResult(gradient);
    } else {
      gradient.sent.reset();
      gradient.memory = {};
      if (first->kind == HA_OK) *first = error;
    }
  }
  ha_locked_plan_end_round(hooks->plan);
  if (hooks->miscounted.exchange(false, std::memory_order_relaxed)) {
    size_t count = 0;
    for (size_t index = 0; index < hooks->gradients.size(); ++index)
      count += horoacc::InFlight(*hooks, index) ? 1 : 0;
    hooks->in_flight.store(count, std::memory_order_relaxed);
  }
  return 0;
}

// The index of the first gradient that the program has changed while it was reduced, since the last
// call; -1: none.
HA_API ptrdiff_t ha_torch_hooks_changed(ha_torch_hooks* hooks) {
  return std::exchange(hooks->changed, -1);
}

HA_API void ha_torch_hooks_restart(ha_torch_hooks* hooks) {
  for (horoacc::Gradient& gradient : hooks->gradients)
    gradient.fired.store(false, std::memory_order_relaxed);
}

HA_API void ha_torch_hooks_destroy(ha_torch_hooks* hooks) {
  const bool forked = horoacc::forked.load(std::memory_order_relaxed);
  for (size_t index = 0; index < hooks->gradients.size(); ++index) {
    horoacc::Gradient& gradient = hooks->gradients[index];
    if (gradient.accumulator) gradient.accumulator->del_post_hook(gradient.hook);
    if (forked || !horoacc::InFlight(*hooks, index)) continue;
    // Peers still write into it, and nothing will wait for them: it is never freed.
    if (gradient.in_flight) ha_release(hooks->engine, gradient.handle);
    new at::Tensor(gradient.sent);
    new c10::Storage(gradient.memory);
  }
  if (!forked) ha_locked_plan_destroy(hooks->plan);  // which tells the other ranks
  delete hooks;
}

}  // extern "C"
