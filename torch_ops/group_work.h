#pragma once
// torch.distributed's object for a call in flight.
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "api/horoacc.h"
#include "group.h"

namespace horoacc {

/// Copies a complete call's results to the caller's tensors, if they are elsewhere.
using Landing = std::function<void(ha_engine* engine, ha_handle handle)>;

/// What torch's profiler shows of a call; nothing if none records. Tools look for events that begin
/// with the name of the backend.
struct Profiled {
  Profiled(const Group& group, const char* title, at::TensorList tensors);

  std::string event;
  std::optional<std::vector<at::Tensor>> inputs;
};

/// A call of the core. The first thread that finds it complete settles it: a caller that waits or
/// polls, driving the engine meanwhile, or the callback, if the call has one.
class GroupWork final : public c10d::Work {
 public:
  /// `title` lives for ever.
  GroupWork(std::shared_ptr<Group> group, c10d::OpType type, const char* title,
            const Profiled& profiled, bool has_callback, std::vector<at::Tensor> kept,
            std::vector<at::Tensor> outputs, Landing landing,
            std::optional<c10::Stream> stream = std::nullopt);
  ~GroupWork() override;

  /// The call was submitted. Called before any wait.
  void Started(ha_handle handle);
  /// For ha_submit: `context` is a Callback, which it frees.
  static void Done(void* context, ha_handle handle);
  using Callback = c10::intrusive_ptr<GroupWork>;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  /// Of a receive, in ranks of the group.
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override { wait(); }
  /// The call's own limit counts from its beginning, `timeout` from now on.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  /// Completed by the call's callback. Waits if the call is synchronous or point-to-point.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return sequence_; }

 private:
  /// `succeeded`: the caller has found that the call did.
  void Settle(ha_handle handle, bool succeeded = false);
  [[nodiscard]] c10::intrusive_ptr<c10::ivalue::Future> NewFuture() const;
  /// Later work on the caller's stream finds the results.
  void Join();

  const std::shared_ptr<Group> group_;
  const char* const title_;
  const bool has_callback_;
  const uint64_t sequence_;
  std::vector<at::Tensor> kept_;  ///< tensors that the engine reads and writes
  std::vector<at::Tensor> outputs_;
  Landing landing_;
  const std::optional<c10::Stream> stream_;  ///< of the submission, for tensors of a GPU
  std::optional<c10::Event> landed_;         ///< on that stream, once settled
  std::atomic<ha_handle> handle_{0};
  std::mutex settling_;
  bool settled_ = false;  ///< under settling_
  int source_ = -1;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace horoacc
