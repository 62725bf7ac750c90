#pragma once
// What torch.distributed holds of a call in flight.
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

/// Puts a complete call's results where the caller wants them, if they are not there yet.
using Landing = std::function<void(ha_engine* engine, ha_handle handle)>;

/// A call of the core. Whoever first finds it complete settles it: the caller that waits or polls,
/// which drives the engine meanwhile, or the callback, if the call has one.
class GroupWork final : public c10d::Work {
 public:
  GroupWork(std::shared_ptr<Group> group, c10d::OpType type, std::string title, bool has_callback,
            std::vector<at::Tensor> kept, std::vector<at::Tensor> outputs, Landing landing,
            std::optional<c10::Stream> stream = std::nullopt);
  ~GroupWork() override;

  /// The call was submitted. Before it is waited for.
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
  /// The limit is the call's own, from its beginning. A `timeout` is from now on.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  /// Completed by the call's callback. Of a call that was asked for synchronously, or
  /// is point-to-point: waits.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return sequence_; }

 private:
  void Settle(ha_handle handle);
  [[nodiscard]] c10::intrusive_ptr<c10::ivalue::Future> NewFuture() const;
  /// The caller's stream finds the results from now on.
  void Join();

  const std::shared_ptr<Group> group_;
  const std::string title_;
  const bool has_callback_;
  const uint64_t sequence_;
  std::vector<at::Tensor> kept_;  ///< what the engine reads and writes
  std::vector<at::Tensor> outputs_;
  Landing landing_;
  const std::optional<c10::Stream> stream_;  ///< of a GPU's tensors: on which they were submitted
  std::optional<c10::Event> landed_;         ///< on that stream, once settled
  std::atomic<ha_handle> handle_{0};
  std::mutex settling_;
  bool settled_ = false;  ///< under settling_
  int source_ = -1;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace horoacc
