// Submits a list of gradients from C++ and one by one, each as a call of its own or, as the
// optimizer's hooks do, to a plan, and takes the time of the submissions alone. Each is waited for.
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "api/horoacc.h"

namespace {

struct Gradients {
  ha_engine* engine;
  ha_call call{};
  std::vector<std::string> names;
  std::vector<std::vector<int64_t>> shapes;
  std::vector<ha_handle> handles;
  ha_locked_plan* plan = nullptr;
};

constexpr int kSum = 1, kFloat32 = 8;  // the numbers of base/dtype.h
using Seconds = std::chrono::duration<double>;

int Submit(Gradients& gradients, size_t i, void* data, ha_error* error) {
  const std::vector<int64_t>& shape = gradients.shapes[i];
  const ha_tensor tensor{gradients.names[i].c_str(),         data,    data, shape.data(),
                         static_cast<int32_t>(shape.size()), kFloat32};
  if (gradients.plan) return ha_locked_plan_submit(gradients.plan, i, &tensor, error);
  return ha_submit(gradients.engine, &gradients.call, &tensor, 1, nullptr, nullptr,
                   &gradients.handles[i], error);
}

int Wait(Gradients& gradients, size_t i, ha_error* error) {
  constexpr double kSeconds = 20.0;
  if (gradients.plan) return ha_locked_plan_wait(gradients.plan, i, kSeconds, error);
  return ha_wait(gradients.engine, gradients.handles[i], kSeconds, error);
}

}  // namespace

extern "C" {

Gradients* gradients_create(void* engine) {
  auto* gradients = new Gradients{static_cast<ha_engine*>(engine), {}, {}, {}, {}, nullptr};
  gradients->call.collective = HA_ALLREDUCE;
  gradients->call.op = kSum;
  gradients->call.prescale = gradients->call.postscale = 1.0;
  return gradients;
}

void gradients_add(Gradients* gradients, const char* name, const int64_t* shape, int ndim) {
  gradients->names.emplace_back(name);
  gradients->shapes.emplace_back(shape, shape + ndim);
  gradients->handles.push_back(0);
}

// From now on they are reduced by a plan.
void gradients_plan(Gradients* gradients) {
  std::vector<const char*> names;
  for (const std::string& name : gradients->names) names.push_back(name.c_str());
  gradients->plan =
      ha_locked_plan_create(gradients->engine, &gradients->call, names.data(), names.size());
}

// One step: every gradient in place at `data`, the last one first as in a backward pass. Gives the
// seconds until all have landed and those of the submissions; negative if something failed, which
// *error then says.
double gradients_step(Gradients* gradients, void* const* data, double* submitting,
                      ha_error* error) {
  const size_t count = gradients->names.size();
  const auto begin = std::chrono::steady_clock::now();
  for (size_t i = count; i-- > 0;) {
    if (Submit(*gradients, i, data[i], error) != HA_OK) return -1;
  }
  *submitting = Seconds(std::chrono::steady_clock::now() - begin).count();
  for (size_t i = 0; i < count; ++i) {
    int code = HA_TIMEOUT;  // also what a signal's arrival reads as
    for (int tries = 0; code == HA_TIMEOUT && tries < 10; ++tries) {
      code = Wait(*gradients, i, error);
    }
    if (code != HA_OK) return -1;
    if (!gradients->plan) ha_release(gradients->engine, gradients->handles[i]);
  }
  if (gradients->plan) ha_locked_plan_end_round(gradients->plan);
  return Seconds(std::chrono::steady_clock::now() - begin).count();
}

void gradients_destroy(Gradients* gradients) {
  if (gradients->plan) ha_locked_plan_destroy(gradients->plan);
  delete gradients;
}

}  // extern "C"
