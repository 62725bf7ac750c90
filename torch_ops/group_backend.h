#pragma once
// torch.distributed's backend "horoacc": one object for each process group.
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "group.h"

namespace horoacc {

using WorkPointer = c10::intrusive_ptr<c10d::Work>;
using TensorVector = std::vector<at::Tensor>;
using TensorLists = std::vector<std::vector<at::Tensor>>;

/// Every call is unnamed in the group's process set: ranks match calls by their order. Nothing is
/// fused across calls.
class GroupBackend final : public c10d::Backend {
 public:
  explicit GroupBackend(std::shared_ptr<Group> group);
  ~GroupBackend() override { group_->Leave(); }

  const std::string getBackendName() const override { return "horoacc"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return group_->sequence(); }
  c10d::ErrorType getError() override { return c10d::ErrorType::SUCCESS; }
  // No `override`: not every torch that this is compiled with has these two.
  bool supportsShrinking() const { return true; }
  c10::intrusive_ptr<Backend> shrink(const std::vector<int64_t>& excluded, int flags,
                                     const c10::intrusive_ptr<Options>& options);
  void abort() override { group_->Leave(); }
  void shutdown() override { group_->Leave(); }

  // group_reductions.cc
  WorkPointer allreduce(TensorVector& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_sparse(TensorVector& tensors,
                               const c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_coalesced(TensorVector& tensors,
                                  const c10d::AllreduceCoalescedOptions& options) override;
  WorkPointer reduce(TensorVector& tensors, const c10d::ReduceOptions& options) override;
  WorkPointer reduce_scatter(TensorVector& outputs, TensorLists& inputs,
                             const c10d::ReduceScatterOptions& options) override;
  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& options) override;
  WorkPointer reduce_scatter_tensor_coalesced(TensorVector& outputs, TensorVector& inputs,
                                              const c10d::ReduceScatterOptions& options) override;

  // group_movements.cc
  WorkPointer broadcast(TensorVector& tensors, const c10d::BroadcastOptions& options) override;
  WorkPointer allgather(TensorLists& outputs, TensorVector& inputs,
                        const c10d::AllgatherOptions& options) override;
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input,
                              const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_coalesced(TensorLists& outputs, TensorVector& inputs,
                                  const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_into_tensor_coalesced(TensorVector& outputs, TensorVector& inputs,
                                              const c10d::AllgatherOptions& options) override;
  WorkPointer gather(TensorLists& outputs, TensorVector& inputs,
                     const c10d::GatherOptions& options) override;
  WorkPointer scatter(TensorVector& outputs, TensorLists& inputs,
                      const c10d::ScatterOptions& options) override;
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input,
                            std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                            const c10d::AllToAllOptions& options) override;
  WorkPointer alltoall(TensorVector& outputs, TensorVector& inputs,
                       const c10d::AllToAllOptions& options) override;
  WorkPointer barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  // group_messages.cc
  WorkPointer send(TensorVector& tensors, int to, int tag) override;
  WorkPointer recv(TensorVector& tensors, int from, int tag) override;
  WorkPointer recvAnysource(TensorVector& tensors, int tag) override;

 private:
  WorkPointer Receive(TensorVector& tensors, int32_t from, int tag, c10d::OpType type);

  const std::shared_ptr<Group> group_;
  const c10::intrusive_ptr<Options> options_;
};

}  // namespace horoacc
