#include "call.h"

#include "element_types.h"
#include "engine.h"
#include "tensorflow/core/framework/node_def_util.h"

namespace horoacc {
namespace {

using tensorflow::Tensor;
using tensorflow::TensorShape;

// At most so many iterations of a loop overlap.
constexpr int64_t kIterations = 128;

// The engine's memory, owned by a tensor.
class EngineMemory final : public tensorflow::TensorBuffer {
 public:
  EngineMemory(void* memory, size_t bytes) : TensorBuffer(memory), bytes_(bytes) {}
  ~EngineMemory() override { ha_free(data()); }

  size_t size() const override { return bytes_; }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription*) const override {}
  bool GetAllocatedBytes(size_t* bytes) const override {
    *bytes = bytes_;
    return true;
  }

 private:
  const size_t bytes_;
};

}  // namespace

Manner::Manner(tensorflow::OpKernelConstruction* construction) {
  OP_REQUIRES_OK(construction, construction->GetAttr("tensor_name", &name_));
  OP_REQUIRES_OK(construction, construction->GetAttr("wait", &waits_));
  OP_REQUIRES_OK(construction, construction->GetAttr("process_set_id", &process_set_));
  if (!name_.empty() || waits_) return;
  // In a graph that was not made by horoacc.tensorflow, the node's name.
  name_ = construction->def().name();
  bool without_scope = false;
  if (construction->HasAttr("ignore_name_scope"))
    OP_REQUIRES_OK(construction, construction->GetAttr("ignore_name_scope", &without_scope));
  if (without_scope) name_ = name_.substr(name_.rfind('/') + 1);
}

std::string Manner::NameIn(const tensorflow::OpKernelContext& context) const {
  // Iterations of a loop overlap, and each has a call of its own.
  const int64_t iteration = context.frame_iter().iter_id;
  if (name_.empty() || waits_ || iteration <= 0) return name_;
  return name_ + "#" + std::to_string(iteration % kIterations);
}

void Call::Add(const Tensor& input, void* output) {
  std::vector<int64_t> shape;
  for (int dim = 0; dim < input.dims(); ++dim) shape.push_back(input.dim_size(dim));
  members.push_back({ReadOnly(input), output, std::move(shape), NumberOf(input.dtype())});
}

int Call::Submit(ha_done done, void* context, ha_handle* handle, ha_error* error) {
  std::vector<std::string> names;
  std::vector<ha_tensor> rows;
  names.reserve(members.size());
  rows.reserve(members.size());
  const bool group = members.size() > 1;
  for (size_t m = 0; m < members.size(); ++m) {
    const Member& member = members[m];
    names.push_back(
        group ? name + "_" + std::to_string(m + 1) + "of" + std::to_string(members.size()) : name);
    rows.push_back({name.empty() ? nullptr : names.back().c_str(), member.input, member.output,
                    member.shape.data(), static_cast<int32_t>(member.shape.size()), member.dtype});
  }
  head.grouped = group ? 1 : 0;
  if (!splits.empty()) {
    head.splits = splits.data();
    head.nsplits = static_cast<int32_t>(splits.size());
  }
  return ha_submit(engine.get(), &head, rows.data(), rows.size(), done, context, handle, error);
}

void Call::SubmitError(const std::string& validation_error) {
  ha_call failed = head;
  failed.validation_error = validation_error.c_str();
  failed.splits = nullptr;
  failed.nsplits = 0;
  failed.grouped = expected > 1 ? 1 : 0;
  const std::string first = failed.grouped ? name + "_1of" + std::to_string(expected) : name;
  const ha_tensor row{
      name.empty() ? nullptr : first.c_str(), nullptr, nullptr, nullptr, 0, HA_INT32};
  ha_handle handle = 0;
  ha_error error;
  // It returns the error that the kernel is about to report.
  (void)ha_submit(engine.get(), &failed, &row, 1, nullptr, nullptr, &handle, &error);
}

absl::Status Ended::Result(size_t member, ha_output* result) const {
  ha_error error{};
  const int code = ha_result(engine_, handle_, member, result, &error);
  return code == HA_OK ? absl::OkStatus() : StatusOf(error);
}

absl::Status Ended::Give(int output, size_t member) {
  ha_output result{};
  if (absl::Status failed = Result(member, &result); !failed.ok()) return failed;
  TensorShape shape;
  for (int32_t dim = 0; dim < result.ndim; ++dim) shape.AddDim(result.shape[dim]);
  const bool on_gpu = call_.head.gpu != nullptr;
  Tensor* target = nullptr;
  if (result.bytes == 0 || on_gpu) {
    absl::Status status = context_->allocate_output(output, shape, &target);
    if (!status.ok() || result.bytes == 0) return status;
  }
  if (result.on_gpu != 0) {
    ha_error error{};
    const int code = ha_copy_result(engine_, handle_, member, 0, result.bytes, Writable(*target),
                                    call_.head.gpu->stream, &error);
    return code == HA_OK ? absl::OkStatus() : StatusOf(error);
  }
  auto* const memory = new EngineMemory(ha_take(engine_, handle_, member), result.bytes);
  Tensor given(context_->expected_output_dtype(output), shape, memory);
  memory->Unref();  // the tensor has a reference of its own
  if (on_gpu) {
    uploads_.push_back({std::move(given), target});
  } else {
    context_->set_output(output, given);
  }
  return absl::OkStatus();
}

absl::Status Ended::GiveAll() {
  for (size_t m = 0; m < call_.members.size(); ++m) {
    absl::Status given = Give(static_cast<int>(m), m);
    if (!given.ok()) return given;
  }
  return absl::OkStatus();
}

}  // namespace horoacc
