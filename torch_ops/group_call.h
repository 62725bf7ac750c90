#pragma once
// From torch's tensors to one call of the core.
#include <ATen/core/DimVector.h>
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "api/horoacc.h"
#include "core_tensor.h"
#include "group.h"
#include "group_work.h"

namespace horoacc {

/// A call's options, as torch passes them.
struct CallOptions {
  c10d::OpType type;
  const char* title;
  bool async = true;
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
};

/// A call that is being prepared. Its first validation error is submitted in its place, so that the
/// other ranks get an error, too.
class GroupCall {
 public:
  /// `inputs` are for torch's profiler.
  GroupCall(std::shared_ptr<Group> group, ha_collective collective, const CallOptions& options,
            at::TensorList inputs);
  /// With torch's options of a collective.
  template <typename Options>
  GroupCall(std::shared_ptr<Group> group, ha_collective collective, c10d::OpType type,
            const char* title, const Options& options, at::TensorList inputs)
      : GroupCall(std::move(group), collective, {type, title, options.asyncOp, options.timeout},
                  inputs) {}

  /// Notes a validation error unless `holds`. Returns `holds`.
  bool Require(bool holds, const char* error);
  [[nodiscard]] bool good() const { return validation_error_.empty(); }

  void SetReduction(const c10d::ReduceOp& op);
  void SetRoot(int64_t rank);
  /// In elements of the tensors, by rank of the group.
  void SetSplits(std::vector<int64_t> give, std::vector<int64_t> take);

  /// Requires a dense tensor of the CPU or of the call's one GPU. `moved_only`: of any type, since
  /// unknown types are moved as bytes.
  bool Check(const at::Tensor& tensor, bool moved_only);
  bool CheckDevice(const at::Tensor& tensor);
  /// Requires a list of so many tensors with type and size of `like`.
  bool CheckList(const std::vector<at::Tensor>& tensors, const at::Tensor& like, size_t ranks);
  /// Adds one tensor with `shape`; its memory is kept until the call is complete. An undefined
  /// tensor stands for no memory on this rank.
  void Add(const at::Tensor& input, const at::Tensor& output, at::ScalarType type,
           at::DimVector shape);
  /// `tensor`, or a contiguous copy of it.
  at::Tensor Readable(const at::Tensor& tensor);
  /// `tensor`, or contiguous memory whose result Land copies to it.
  at::Tensor Writable(const at::Tensor& tensor, bool with_contents);
  /// Adds a function that runs when the call is complete.
  void Land(Landing landing) { landings_.push_back(std::move(landing)); }
  void Keep(const at::Tensor& tensor) { kept_.push_back(tensor); }

  /// Throws the validation error, or the core's.
  c10::intrusive_ptr<c10d::Work> Submit(std::vector<at::Tensor> outputs);

 private:
  struct Member {
    const void* input;
    void* output;
    at::DimVector shape;
    int32_t dtype;
  };

  [[nodiscard]] double LimitSeconds() const;

  const std::shared_ptr<Group> group_;
  const CallOptions options_;
  const Profiled profiled_;
  ha_call call_{};
  std::string validation_error_;
  std::vector<int64_t> give_, take_;
  std::optional<c10::Device> device_;  ///< of the tensors that were checked
  std::optional<c10::Stream> stream_;  ///< if that is a GPU
  c10::SmallVector<Member, 1> members_;
  std::vector<at::Tensor> kept_;
  std::vector<Landing> landings_;
};

/// The elements of all tensors, one tensor after the other.
[[nodiscard]] at::Tensor Flattened(const std::vector<at::Tensor>& tensors);

}  // namespace horoacc
