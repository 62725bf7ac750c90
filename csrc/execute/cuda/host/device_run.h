#pragma once
// A collective of tensors on GPUs: it waits until the ranks have exchanged their capabilities, then
// continues in the mode that they agreed on, or on the host.
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "execute/cuda/host/device_call.h"
#include "execute/cuda/host/gpu_group.h"
#include "execute/cuda/host/hosts_exchange.h"
#include "execute/execution.h"

namespace horoacc::cuda {

class DeviceRun final : public Execution {
 public:
  struct Parts {
    GpuGroup* gpu_group = nullptr;         ///< null: the host reduces
    std::unique_ptr<HostsExchange> hosts;  ///< null: this rank tells no other hosts of its GPUs
    /// By index of the rank: the number there of the GPU of its tensors; -1: of several GPUs.
    std::vector<int> devices;
    std::vector<DeviceCall*> calls;  ///< this rank's
    bool pipelined = false;          ///< the host begins before all inputs are there
    /// The mode for this decision, once the GPU group has agreed on one in which GPUs reduce.
    /// kCpuReduce: they cannot. None: another rank has to say first whether it can.
    std::function<std::optional<GpuMode>()> mode;
    std::function<std::unique_ptr<Execution>(GpuMode, Status&)> on_gpus;
    /// Called once the inputs are on the host, or before if pipelined. Null: nothing is to be done.
    std::function<std::unique_ptr<Execution>(Status&)> on_host;
    std::atomic<uint32_t>* polling = nullptr;        ///< see Watch
    std::atomic<uint64_t>* bytes_to_host = nullptr;  ///< a counter
  };

  explicit DeviceRun(Parts parts) : parts_(std::move(parts)), watch_(*parts_.polling) {}
  bool Advance() override;
  [[nodiscard]] bool complete() const override {
    return step_ == Step::kRefused || (step_ == Step::kRun && (!inner_ || inner_->complete()));
  }
  [[nodiscard]] bool overlaps() const override { return inner_ && inner_->overlaps(); }
  [[nodiscard]] bool finished() const override {
    return complete() && (!inner_ || inner_->finished());
  }
  [[nodiscard]] bool failed() const override {
    return !status_.ok() || (inner_ && inner_->failed());
  }
  [[nodiscard]] Error failure() const override {
    return status_.ok() ? inner_->failure() : status_.error();
  }
  [[nodiscard]] Status outcome() const override { return refusal_ ? Status(*refusal_) : Status(); }

 private:
  enum class Step { kAgree, kCopy, kRun, kRefused };
  [[nodiscard]] Result<bool> Agree();
  [[nodiscard]] Result<bool> CopyToHost();
  [[nodiscard]] bool OnGpusOfTheGroup() const;

  const Parts parts_;
  Watch watch_;
  Step step_ = Step::kAgree;
  std::unique_ptr<Execution> inner_;
  std::optional<Error> refusal_;
  Status status_;
};

}  // namespace horoacc::cuda
