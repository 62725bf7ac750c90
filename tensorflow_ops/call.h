#pragma once
// One call of the core, made of tensors that TensorFlow owns.
#include <cstdint>
#include <string>
#include <vector>

#include "api/horoacc.h"
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

  ha_call head{};
  std::string name;
  std::vector<Member> members;
  std::vector<int64_t> splits;
  std::vector<tensorflow::Tensor> kept;  ///< memory that nobody else keeps until the end

  /// `output` NULL: the engine allocates.
  void Add(const tensorflow::Tensor& input, void* output);
  /// As the core's ha_submit.
  int Submit(ha_engine* engine, ha_done done, void* context, ha_handle* handle, ha_error* error);
  /// Tells the ranks that make this call why this one cannot.
  void Complain(ha_engine* engine, const std::string& why);
};

[[nodiscard]] inline const void* ReadOnly(const tensorflow::Tensor& tensor) {
  return tensor.tensor_data().data();
}
[[nodiscard]] inline void* Writable(tensorflow::Tensor& tensor) {
  return const_cast<char*>(tensor.tensor_data().data());
}

/// Makes an output of member `member`'s result, which the engine allocated: without a copy.
absl::Status GiveOutput(tensorflow::OpKernelContext* context, int output, ha_engine* engine,
                        ha_handle handle, size_t member);

}  // namespace horoacc
