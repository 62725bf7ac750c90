#include "group_work.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <utility>

#include "python_calls.h"

namespace horoacc {
namespace {

constexpr double kSignalPeriodSeconds = 0.2;  // between calls of Python's signal handlers

}  // namespace

Profiled::Profiled(const Group& group, const char* title, at::TensorList tensors) {
  if (!at::hasCallbacks()) return;
  event = group.backend() + ":" + title;
  inputs = tensors.vec();
}

GroupWork::GroupWork(std::shared_ptr<Group> group, c10d::OpType type, const char* title,
                     const Profiled& profiled, bool has_callback, std::vector<at::Tensor> kept,
                     std::vector<at::Tensor> outputs, Landing landing,
                     std::optional<c10::Stream> stream)
    : Work(group->rank(), type, profiled.inputs ? profiled.event.c_str() : nullptr,
           profiled.inputs),
      group_(std::move(group)),
      title_(title),
      has_callback_(has_callback),
      sequence_(group_->NextSequence()),
      kept_(std::move(kept)),
      outputs_(std::move(outputs)),
      landing_(std::move(landing)),
      stream_(stream) {
  if (has_callback_) future_ = NewFuture();
}

GroupWork::~GroupWork() {
  const ha_handle handle = handle_.load();
  if (settled_ || handle == 0) return;
  // The engine, and peers, may still use the memory.
  for (const at::Tensor& output : outputs_) kept_.push_back(output);
  group_->Adopt(handle, std::move(kept_));
}

c10::intrusive_ptr<c10::ivalue::Future> GroupWork::NewFuture() const {
  std::vector<c10::Device> devices;
  if (stream_) devices.push_back(stream_->device());
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                  std::move(devices));
}

void GroupWork::Join() {
  if (!landed_) return;
  const c10::impl::VirtualGuardImpl guard(stream_->device_type());
  const c10::Stream now = guard.getStream(stream_->device());
  if (now != *stream_) landed_->block(now);
}

void GroupWork::Started(ha_handle handle) { handle_.store(handle); }

void GroupWork::Done(void* context, ha_handle handle) {
  const std::unique_ptr<Callback> work(static_cast<Callback*>(context));
  (*work)->Settle(handle);
}

void GroupWork::Settle(ha_handle handle, bool succeeded) {
  std::exception_ptr thrown;
  // To drop a tensor takes the GIL if Python has it too, and whoever has the GIL may want the lock.
  std::vector<at::Tensor> kept;
  Landing landing;
  // On a GPU results are copied on the stream of the submission, to which their memory belongs.
  const c10::OptionalStreamGuard on_stream(stream_);
  {
    const std::scoped_lock lock(settling_);
    if (settled_) return;
    ha_engine* const engine = group_->engine();
    ha_error error;  // some kilobytes, filled if a call fails
    try {
      if (!succeeded && ha_wait(engine, handle, 0, &error) != HA_OK) group_->Throw(error);
      if (stream_ && ha_join_stream(engine, handle, HandleOf(*stream_), &error) != HA_OK)
        group_->Throw(error);
      if (c10d::isP2POp(opType_)) source_ = group_->LocalRank(ha_source(engine, handle));
      if (landing_) {
        // The copies of results must not be recorded by autograd.
        const at::AutoDispatchBelowADInplaceOrView no_autograd;
        landing_(engine, handle);
      }
      if (stream_) landed_.emplace(stream_->device_type()).record(*stream_);
    } catch (...) {
      thrown = std::current_exception();
    }
    ha_release(engine, handle);
    settled_ = true;
    landing = std::exchange(landing_, nullptr);
    kept = std::exchange(kept_, {});
    finish(thrown);
  }
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::scoped_lock lock(future_mutex_);
    future = future_;
  }
  if (!future) return;
  // Runs callbacks of the future, without any lock.
  if (thrown) {
    future->setError(thrown);
  } else {
    future->markCompleted(at::IValue(outputs_));
  }
}

bool GroupWork::isCompleted() {
  if (Work::isCompleted()) return true;
  const WithoutGil without_gil;
  const ha_handle handle = handle_.load();
  if (handle == 0 || ha_poll(group_->engine(), handle) == 0) return Work::isCompleted();
  Settle(handle);
  return true;
}

bool GroupWork::isSuccess() const {
  const std::scoped_lock lock(mutex_);
  return completed_ && !exception_;
}

std::exception_ptr GroupWork::exception() const {
  const std::scoped_lock lock(mutex_);
  return exception_;
}

int GroupWork::sourceRank() const {
  TORCH_CHECK(source_ >= 0, title_, " has no source rank: it is no receive that is complete");
  return source_;
}

std::vector<at::Tensor> GroupWork::result() {
  TORCH_CHECK(isCompleted(), title_, " is not complete: wait for it before its result");
  return outputs_;
}

bool GroupWork::wait(std::chrono::milliseconds timeout) {
  const WithoutGil without_gil;
  const ha_handle handle = handle_.load();
  ha_engine* const engine = group_->engine();
  const auto limit = std::chrono::steady_clock::now() + timeout;
  ha_error error;  // not looked into: Settle asks for it
  int code = HA_TIMEOUT;
  while (!Work::isCompleted() &&
         (code = ha_wait(engine, handle, kSignalPeriodSeconds, &error)) == HA_TIMEOUT &&
         ha_poll(engine, handle) == 0) {
    CheckSignals();
    if (timeout <= kNoTimeout || std::chrono::steady_clock::now() < limit) continue;
    const double seconds = std::chrono::duration<double>(timeout).count();
    ha_error late{};
    if (ha_give_up(engine, handle, seconds, &late) != HA_TIMEOUT) break;
    group_->Throw(late);
  }
  Settle(handle, code == HA_OK);
  if (const std::exception_ptr thrown = exception()) std::rethrow_exception(thrown);
  Join();
  return true;
}

void GroupWork::abort() { group_->Leave(); }

c10::intrusive_ptr<c10::ivalue::Future> GroupWork::getFuture() {
  if (!has_callback_) {
    try {
      wait();
    } catch (...) {
      // The future has it.
    }
  }
  const std::scoped_lock lock(future_mutex_);
  if (future_) return future_;
  future_ = NewFuture();
  if (const std::exception_ptr thrown = exception()) {
    future_->setError(thrown);
  } else {
    future_->markCompleted(at::IValue(outputs_));
  }
  return future_;
}

}  // namespace horoacc
