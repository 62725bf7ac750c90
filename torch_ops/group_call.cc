#include "group_call.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>

#include <utility>

#include "torch_versions.h"

namespace horoacc {
namespace {

int32_t CoreReduction(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::PREMUL_SUM:
      return HA_SUM;
    case c10d::ReduceOp::AVG:
      return HA_AVERAGE;
    case c10d::ReduceOp::PRODUCT:
      return HA_PRODUCT;
    case c10d::ReduceOp::MIN:
      return HA_MIN;
    case c10d::ReduceOp::MAX:
      return HA_MAX;
    case c10d::ReduceOp::BAND:
      return HA_BIT_AND;
    case c10d::ReduceOp::BOR:
      return HA_BIT_OR;
    case c10d::ReduceOp::BXOR:
      return HA_BIT_XOR;
    default:
      return -1;
  }
}

}  // namespace

GroupCall::GroupCall(std::shared_ptr<Group> group, ha_collective collective,
                     const CallOptions& options, at::TensorList inputs)
    : group_(std::move(group)), options_(options), profiled_(*group_, options.title, inputs) {
  call_.collective = collective;
  call_.process_set = group_->process_set();
  call_.op = HA_SUM;
  call_.prescale = call_.postscale = 1.0;
}

bool GroupCall::Require(bool holds, const char* error) {
  if (!holds && good()) validation_error_ = std::string(options_.title) + ": " + error;
  return holds;
}

void GroupCall::SetReduction(const c10d::ReduceOp& op) {
  const int32_t reduction = CoreReduction(op.op_);
  if (!Require(reduction >= 0, "unknown reduction")) return;
  call_.op = reduction;
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return;
  const auto* factor = dynamic_cast<const PreMulSumSupplement*>(op.supplement_.get());
  if (!Require(factor != nullptr, "PREMUL_SUM has no factor")) return;
  call_.prescale = factor->tensor_factor.defined() ? factor->tensor_factor.item<double>()
                                                   : factor->double_factor;
}

void GroupCall::SetRoot(int64_t rank) {
  call_.root = group_->GlobalRank(rank);
  Require(call_.root >= 0, "the root is no rank of the group");
}

void GroupCall::SetSplits(std::vector<int64_t> give, std::vector<int64_t> take) {
  give_ = std::move(give);
  take_ = std::move(take);
}

bool GroupCall::Check(const at::Tensor& tensor, bool moved_only) {
  if (!Require(tensor.defined(), "a tensor is missing") || !CheckDevice(tensor)) return false;
  return Require(tensor.layout() == at::kStrided, "the tensor is sparse") &&
         Require(moved_only || CoreType(tensor.scalar_type()) >= 0,
                 "tensors of this type cannot be reduced");
}

bool GroupCall::CheckDevice(const at::Tensor& tensor) {
  if (!Require(tensor.is_cpu() || tensor.is_cuda(),
               "the tensor is neither in CPU memory nor on a CUDA GPU") ||
      !Require(!device_ || *device_ == tensor.device(),
               "the tensors of a call lie on different devices"))
    return false;
  device_ = tensor.device();
  stream_ = StreamOf(tensor);
  return true;
}

bool GroupCall::CheckList(const std::vector<at::Tensor>& tensors, const at::Tensor& like,
                          size_t ranks) {
  if (!Require(tensors.size() == ranks, "the list must have a tensor for every rank")) return false;
  for (const at::Tensor& tensor : tensors) {
    if (!Check(tensor, true) ||
        !Require(tensor.scalar_type() == like.scalar_type(), "the tensors differ in type") ||
        !Require(tensor.numel() == like.numel(), "the tensors differ in size"))
      return false;
  }
  return true;
}

at::Tensor GroupCall::Readable(const at::Tensor& tensor) { return tensor.contiguous(); }

at::Tensor GroupCall::Writable(const at::Tensor& tensor, bool with_contents) {
  if (tensor.is_contiguous()) return tensor;
  at::Tensor flat =
      with_contents ? tensor.contiguous() : at::empty_like(tensor, at::MemoryFormat::Contiguous);
  Land([tensor, flat](ha_engine*, ha_handle) { tensor.copy_(flat); });
  return flat;
}

void GroupCall::Add(const at::Tensor& input, const at::Tensor& output, at::ScalarType type,
                    at::DimVector shape) {
  const Moved moved = MovedAs(type);
  if (!shape.empty()) shape.back() *= moved.units;
  if (input.defined()) kept_.push_back(input);
  if (output.defined() && !output.is_same(input)) kept_.push_back(output);
  members_.push_back({input.defined() ? input.const_data_ptr() : nullptr,
                      output.defined() ? output.mutable_data_ptr() : nullptr, std::move(shape),
                      moved.dtype});
}

double GroupCall::LimitSeconds() const {
  if (options_.timeout <= kNoTimeout) return group_->limit_seconds();
  return std::chrono::duration<double>(options_.timeout).count();
}

c10::intrusive_ptr<c10d::Work> GroupCall::Submit(std::vector<at::Tensor> outputs) {
  group_->Sweep();
  c10::SmallVector<ha_tensor, 1> rows;
  rows.reserve(members_.size());
  for (const Member& member : members_) {
    rows.push_back({nullptr, member.input, member.output, member.shape.data(),
                    static_cast<int32_t>(member.shape.size()), member.dtype});
  }
  if (!good()) call_.validation_error = validation_error_.c_str();
  if (!give_.empty()) {
    call_.splits = give_.data();
    call_.nsplits = static_cast<int32_t>(give_.size());
    if (!take_.empty()) call_.receive_splits = take_.data();
  }
  call_.limit_seconds = LimitSeconds();
  const ha_gpu gpu = stream_ ? GpuOf(*stream_) : ha_gpu{};
  if (stream_) call_.gpu = &gpu;
  Landing landing;
  if (landings_.size() == 1) {
    landing = std::move(landings_[0]);
  } else if (!landings_.empty()) {
    landing = [all = std::move(landings_)](ha_engine* engine, ha_handle handle) {
      for (const Landing& one : all) one(engine, handle);
    };
  }
  auto work = c10::make_intrusive<GroupWork>(group_, options_.type, options_.title, profiled_,
                                             options_.async, std::move(kept_), std::move(outputs),
                                             std::move(landing), stream_);
  auto callback = options_.async ? std::make_unique<GroupWork::Callback>(work) : nullptr;
  ha_handle handle = 0;
  ha_error error;  // some kilobytes, filled if the call fails
  if (ha_submit(group_->engine(), &call_, rows.data(), rows.size(),
                callback ? &GroupWork::Done : nullptr, callback.get(), &handle, &error) != HA_OK) {
    group_->Throw(error);
  }
  (void)callback.release();
  work->Started(handle);
  return work;
}

at::Tensor Flattened(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  return at::cat(flat);
}

}  // namespace horoacc
