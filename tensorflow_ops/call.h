#pragma once
// One call of the core, made of tensors that TensorFlow owns.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "api/engine_ref.h"
#include "api/horoacc.h"
#include "gpu.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace horoacc {

/// The names of a kernel's calls, and how it waits; from the op's attributes.
class Manner {
 public:
  explicit Manner(tensorflow::OpKernelConstruction* construction);

  /// The name of a call; empty if it is matched by its order.
  [[nodiscard]] std::string NameIn(const tensorflow::OpKernelContext& context) const;
  /// Whether the calling thread waits for the result and drives the engine meanwhile: in eager
  /// calls. In a graph a waiting thread could not run the ops on which other ranks wait.
  [[nodiscard]] bool waits() const { return waits_; }
  [[nodiscard]] int32_t process_set() const { return process_set_; }

 private:
  std::string name_;
  bool waits_ = false;
  int32_t process_set_ = 0;
};

/// A call that is being prepared or in flight.
struct Call {
  struct Member {
    const void* input;
    void* output;
    std::vector<int64_t> shape;
    int32_t dtype;
  };

  explicit Call(EngineRef by) : engine(std::move(by)) {}

  EngineRef engine;
  ha_call head{};
  ha_gpu gpu{};  ///< `head` points to it if the call has one
  std::string name;
  std::vector<Member> members;
  size_t expected = 1;  ///< how many members there are once all are prepared
  std::vector<int64_t> splits;
  std::vector<tensorflow::Tensor> kept;  ///< memory that only the call keeps alive

  /// `output` NULL: the engine allocates.
  void Add(const tensorflow::Tensor& input, void* output);
  /// As the core's ha_submit.
  int Submit(ha_done done, void* context, ha_handle* handle, ha_error* error);
  /// Submits a validation error in place of the call, for the other ranks.
  void SubmitError(const std::string& validation_error);
};

[[nodiscard]] inline const void* ReadOnly(const tensorflow::Tensor& tensor) {
  return tensor.tensor_data().data();
}
[[nodiscard]] inline void* Writable(tensorflow::Tensor& tensor) {
  return const_cast<char*>(tensor.tensor_data().data());
}

/// A call that has succeeded, whose results become outputs.
class Ended {
 public:
  Ended(tensorflow::OpKernelContext* context, const Call& call, ha_handle handle)
      : context_(context), call_(call), engine_(call.engine.get()), handle_(handle) {}

  [[nodiscard]] tensorflow::OpKernelContext* context() const { return context_; }
  [[nodiscard]] const Call& call() const { return call_; }
  [[nodiscard]] const ha_engine* engine() const { return engine_; }
  /// A member's result that the engine allocated, or the shape of another.
  absl::Status Result(size_t member, ha_output* result) const;
  /// Makes an output of a member's result, which the engine allocated: without a copy, or with one
  /// of `uploads` if the output is on a GPU.
  absl::Status Give(int output, size_t member);
  /// The same for all members.
  absl::Status GiveAll();
  [[nodiscard]] std::vector<Upload> uploads() && { return std::move(uploads_); }

 private:
  tensorflow::OpKernelContext* const context_;
  const Call& call_;
  ha_engine* const engine_;
  const ha_handle handle_;
  std::vector<Upload> uploads_;
};

}  // namespace horoacc
