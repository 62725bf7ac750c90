#pragma once
// The one body of all collectives' kernels.
#include <memory>
#include <utility>
#include <vector>

#include "call.h"
#include "engine.h"
#include "interrupts.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace horoacc {

/// Seconds between calls of signal handlers while an eager call waits.
inline constexpr double kSignalPeriod = 0.2;

/// A kernel that makes one call of the core. `Collective` is constructible from a kernel's
/// construction and has
///
///     absl::Status Prepare(tensorflow::OpKernelContext*, Call*) const;  // before the call
///     absl::Status Land(Ended*) const;                                  // if it has succeeded
///
/// An error of Prepare is submitted, so that the other ranks do not wait for this one. On a GPU no
/// thread waits for the kernel's stream: the call begins when the stream reaches it, and later work
/// there finds the results.
template <class Collective>
class CollectiveKernel final : public tensorflow::AsyncOpKernel {
 public:
  explicit CollectiveKernel(tensorflow::OpKernelConstruction* construction)
      : AsyncOpKernel(construction),
        manner_(construction),
        collective_(construction),
        on_gpu_(Collective::kCollective != HA_JOIN &&  // which has no tensors
                construction->device_type() != tensorflow::DeviceType(tensorflow::DEVICE_CPU)) {}

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override {
    // A ref of its own: Done may free the flight before Submit returns.
    const EngineRef ref = TheEngine();
    OP_REQUIRES_ASYNC(context, ref, NotInitialized(), done);
    ReleaseLeft();
    ha_engine* const engine = ref.get();
    auto flight = std::make_unique<Flight>(this, context, ref, std::move(done));
    Call& call = flight->call;
    call.head.collective = Collective::kCollective;
    call.head.process_set = manner_.process_set();
    call.head.prescale = call.head.postscale = 1.0;
    call.name = manner_.NameIn(*context);
    // An all-to-all has an input that is no member: its splits.
    if (Collective::kCollective != HA_ALLTOALL)
      call.expected = static_cast<size_t>(context->num_inputs());
    if (absl::Status refused = Prepare(context, &call); !refused.ok()) {
      call.SubmitError(std::string(refused.message()));
      return End(std::move(flight), refused);
    }
    ha_handle handle = 0;
    ha_error error{};
    const bool waits = manner_.waits();
    if (call.Submit(waits ? nullptr : &Done, flight.get(), &handle, &error) != HA_OK)
      return End(std::move(flight), StatusOf(error));
    if (!waits) {
      (void)flight.release();  // Done owns it, and may have freed it
      return;
    }
    // The calling thread may be Python's main thread, which runs the handlers of signals.
    while (ha_wait(engine, handle, kSignalPeriod, &error) == HA_TIMEOUT &&
           ha_poll(engine, handle) == 0) {
      if (HandlersRaise()) return Leave(std::move(flight), handle);
    }
    Land(std::move(flight), handle);
  }

 private:
  absl::Status Prepare(tensorflow::OpKernelContext* context, Call* call) const {
    if (on_gpu_) {
      if (absl::Status none = FindGpu(context, &call->gpu); !none.ok()) return none;
      call->head.gpu = &call->gpu;
    }
    return collective_.Prepare(context, call);
  }

  struct Flight {
    Flight(CollectiveKernel* made_by, tensorflow::OpKernelContext* with, EngineRef by,
           DoneCallback then)
        : kernel(made_by), context(with), done(std::move(then)), call(std::move(by)) {}

    CollectiveKernel* const kernel;
    tensorflow::OpKernelContext* const context;
    DoneCallback done;
    Call call;
  };

  static void Done(void* context, ha_handle handle) {
    std::unique_ptr<Flight> flight(static_cast<Flight*>(context));
    CollectiveKernel* const kernel = flight->kernel;
    kernel->Land(std::move(flight), handle);
  }

  void Land(std::unique_ptr<Flight> flight, ha_handle handle) {
    ha_engine* const engine = flight->call.engine.get();
    ha_error error{};
    absl::Status status;
    std::vector<Upload> uploads;
    int code = ha_wait(engine, handle, 0, &error);
    if (code == HA_OK && on_gpu_)
      code = ha_join_stream(engine, handle, flight->call.gpu.stream, &error);
    if (code != HA_OK) {
      status = StatusOf(error);
    } else {
      Ended ended(flight->context, flight->call, handle);
      status = collective_.Land(&ended);
      uploads = std::move(ended).uploads();
    }
    ha_release(engine, handle);
    if (!status.ok() || uploads.empty()) return End(std::move(flight), status);
    tensorflow::OpKernelContext* const context = flight->context;
    StartUploads(context, std::move(uploads),
                 [flight = flight.release()](const absl::Status& arrived) {
                   End(std::unique_ptr<Flight>(flight), arrived);
                 });
  }

  // Ends the op, but not its call, in which the other ranks take part.
  static void Leave(std::unique_ptr<Flight> flight, ha_handle handle) {
    tensorflow::OpKernelContext* const context = flight->context;
    std::vector<tensorflow::Tensor> memory = std::move(flight->call.kept);
    for (int t = 0; t < context->num_inputs(); ++t) {
      if (!context->input_is_ref(t)) memory.push_back(context->input(t));
    }
    for (int t = 0; t < context->num_outputs(); ++t) {
      if (const tensorflow::Tensor* const output = context->mutable_output(t))
        memory.push_back(*output);
    }
    LeaveInFlight(flight->call.engine, handle, std::move(memory));
    End(std::move(flight), absl::CancelledError("a signal's handler ended the wait"));
  }

  static void End(std::unique_ptr<Flight> flight, const absl::Status& status) {
    if (!status.ok()) flight->context->CtxFailure(status);
    const DoneCallback done = std::move(flight->done);
    flight.reset();
    done();  // may free the kernel
  }

  const Manner manner_;
  const Collective collective_;
  const bool on_gpu_;
};

}  // namespace horoacc
