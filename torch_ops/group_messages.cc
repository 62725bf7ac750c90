// Point-to-point calls of torch.distributed.
#include <ATen/ops/empty.h>

#include "group_backend.h"
#include "group_call.h"

namespace horoacc {
namespace {

// Messages are matched by their order between two ranks, so a bad one fails on this rank alone.
const at::Tensor& OneTensor(const TensorVector& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "one tensor is sent at a time, not ", tensors.size());
  TORCH_CHECK_VALUE(
      (tensors[0].is_cpu() || tensors[0].is_cuda()) && tensors[0].layout() == at::kStrided,
      "horoacc sends dense tensors of the CPU or of a CUDA GPU");
  return tensors[0];
}

}  // namespace

WorkPointer GroupBackend::send(TensorVector& tensors, int to, int tag) {
  // Messages are sent from host memory: a GPU's tensor is copied here, which waits for it.
  const at::Tensor data = OneTensor(tensors).cpu().contiguous();
  group_->Sweep();
  auto work = c10::make_intrusive<GroupWork>(group_, c10d::OpType::SEND, "send",
                                             Profiled(*group_, "send", tensors), false,
                                             TensorVector{data}, TensorVector{}, Landing());
  ha_handle handle = 0;
  ha_error error{};
  if (ha_send(group_->engine(), group_->process_set(), group_->GlobalRank(to), tag,
              data.const_data_ptr(), data.nbytes(), group_->limit_seconds(), &handle,
              &error) != HA_OK) {
    group_->Throw(error);
  }
  work->Started(handle);
  return work;
}

WorkPointer GroupBackend::recv(TensorVector& tensors, int from, int tag) {
  return Receive(tensors, group_->GlobalRank(from), tag, c10d::OpType::RECV);
}

WorkPointer GroupBackend::recvAnysource(TensorVector& tensors, int tag) {
  return Receive(tensors, HA_ANY_SOURCE, tag, c10d::OpType::RECVANYSOURCE);
}

WorkPointer GroupBackend::Receive(TensorVector& tensors, int32_t from, int tag, c10d::OpType type) {
  const at::Tensor output = OneTensor(tensors);
  group_->Sweep();
  const at::Tensor memory = output.is_cuda()
                                ? at::empty(output.sizes(), output.options().device(at::kCPU))
                                : output.contiguous();
  Landing landing;
  if (!memory.is_same(output))
    landing = [output, memory](ha_engine*, ha_handle) { output.copy_(memory); };
  const char* const event = type == c10d::OpType::RECV ? "recv" : "recvAnySource";  // as Gloo's
  auto work = c10::make_intrusive<GroupWork>(
      group_, type, "recv", Profiled(*group_, event, tensors), false, TensorVector{memory},
      TensorVector{output}, std::move(landing));
  ha_handle handle = 0;
  ha_error error{};
  if (ha_receive(group_->engine(), group_->process_set(), from, tag, memory.mutable_data_ptr(),
                 memory.nbytes(), group_->limit_seconds(), &handle, &error) != HA_OK) {
    group_->Throw(error);
  }
  work->Started(handle);
  return work;
}

}  // namespace horoacc
