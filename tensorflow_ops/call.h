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

/// How a kernel's calls are named, and how it waits; from the op's attributes.
class Manner {
 public:
  explicit Manner(tensorflow::OpKernelConstruction* construction);

  /// The name of a call; empty if it is matched by its order.
  [[nodiscard]] std::string NameIn(const tensorflow::OpKernelContext& context) const;
  /// Whether the calling thread waits for the result and drives the engine meanwhile, as it should
  /// where nothing else is to be done: in an eager call. In a graph a thread that waits would be
  /// missing for the ops on which other ranks wait.
  [[nodiscard]] bool waits() const { return waits_; }
  [[nodiscard]] int32_t process_set() const { return process_set_; }

 private:
  std::string name_;
  bool waits_ = false;
  int32_t process_set_ = 0;
};

/// A call while it is put together, and until it has ended.
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
  ha_gpu gpu{};  ///< where `head` says that there is one
  std::string name;
  std::vector<Member> members;
  std::vector<int64_t> splits;
  std::vector<tensorflow::Tensor> kept;  ///< memory that nobody else keeps until the end

  /// `output` NULL: the engine allocates.
  void Add(const tensorflow::Tensor& input, void* output);
  /// As the core's ha_submit.
  int Submit(ha_done done, void* context, ha_handle* handle, ha_error* error);
  /// Tells the ranks that make this call why this one cannot.
  void Complain(const std::string& why);
};

[[nodiscard]] inline const void* ReadOnly(const tensorflow::Tensor& tensor) {
  return tensor.tensor_data().data();
}
[[nodiscard]] inline void* Writable(tensorflow::Tensor& tensor) {
  return const_cast<char*>(tensor.tensor_data().data());
}

/// A call that has ended well, and what its results become.
class Ended {
 public:
  Ended(tensorflow::OpKernelContext* context, const Call& call, ha_handle handle)
      : context_(context), call_(call), engine_(call.engine.get()), handle_(handle) {}

  [[nodiscard]] tensorflow::OpKernelContext* context() const { return context_; }
  [[nodiscard]] const Call& call() const { return call_; }
  [[nodiscard]] const ha_engine* engine() const { return engine_; }
  /// Of a member: what the engine allocated, or the shape of what it did not.
  absl::Status Result(size_t member, ha_output* result) const;
  /// Makes an output of a member's result, which the engine allocated: without a copy, but for one
  /// of `uploads` if the output is a GPU's.
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
