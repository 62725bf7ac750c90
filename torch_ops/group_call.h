#pragma once
// From torch's tensors to one call of the core.
#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "api/horoacc.h"
#include "group.h"
#include "group_work.h"
#include "places.h"

namespace horoacc {

/// How a call was asked for.
struct CallOptions {
  c10d::OpType type;
  const char* title;
  bool async = true;
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
};

/// One call while it is put together. The first thing that is wrong with it stays, and is published
/// instead of the call, so that the other ranks hear of it.
class GroupCall {
 public:
  GroupCall(std::shared_ptr<Group> group, ha_collective collective, const CallOptions& options);

  /// Refuses the call unless `holds`. Gives `holds` back.
  bool Require(bool holds, const char* what);
  [[nodiscard]] bool good() const { return complaint_.empty(); }

  void SetReduction(const c10d::ReduceOp& op);
  void SetRoot(int64_t rank);
  /// In elements of the tensors, by rank of the group.
  void SetSplits(std::vector<int64_t> give, std::vector<int64_t> take);

  /// Refuses what is not a dense tensor of the CPU or of the call's one GPU. `moved_only`: a type
  /// that the core does not know is welcome as bytes.
  bool Check(const at::Tensor& tensor, bool moved_only);
  bool CheckDevice(const at::Tensor& tensor);
  /// One tensor of the call; its memory is kept until the call is complete. The core sees `shape`.
  /// Undefined: no memory on this rank.
  void Add(const at::Tensor& input, const at::Tensor& output, at::ScalarType type,
           std::vector<int64_t> shape);
  /// `tensor`, or a contiguous copy of it.
  at::Tensor Readable(const at::Tensor& tensor);
  /// `tensor`, or contiguous memory from which the result is copied to it in the end.
  at::Tensor Writable(const at::Tensor& tensor, bool with_contents);
  /// What else has to be done in the end.
  void Land(Landing landing) { landings_.push_back(std::move(landing)); }
  void Keep(const at::Tensor& tensor) { kept_.push_back(tensor); }

  /// Throws what is wrong with the call.
  c10::intrusive_ptr<c10d::Work> Submit(std::vector<at::Tensor> outputs);

 private:
  struct Member {
    const void* input;
    void* output;
    std::vector<int64_t> shape;
    int32_t dtype;
  };

  [[nodiscard]] double LimitSeconds() const;

  const std::shared_ptr<Group> group_;
  const CallOptions options_;
  ha_call call_{};
  std::string complaint_;
  std::vector<int64_t> give_, take_;
  std::optional<c10::Device> device_;  ///< of the tensors that were checked
  std::optional<c10::Stream> stream_;  ///< if that is a GPU
  std::vector<Member> members_;
  std::vector<at::Tensor> kept_;
  std::vector<Landing> landings_;
};

/// Elements and bytes of an element as the core sees a tensor that it only moves.
struct Moved {
  int32_t dtype;
  int64_t units;  ///< of dtype, for an element
};
[[nodiscard]] Moved MovedAs(at::ScalarType type);

}  // namespace horoacc
