#pragma once
// The thread that drives the engine while no caller does.
#include <cstdint>
#include <stop_token>
#include <thread>

#include "runtime/engine/plans.h"
#include "runtime/engine/waits.h"
#include "runtime/health/stack_exchange.h"

namespace horoacc {

class Coordinator {
 public:
  struct Parts {
    Job& job;
    Failure& failure;
    SetTable& sets;
    Plans& plans;
    Driver& driver;
    StackExchange& stacks;
    Telemetry& telemetry;
    Watches watches;
  };
  explicit Coordinator(Parts parts) : parts_(parts), job_(parts.job) {}

  Status Start();
  void Stop();

 private:
  void Run(const std::stop_token& stop);
  void RunTurns(const std::stop_token& stop);
  void Pin() const;
  /// Frameworks whose threads never wait here (graphs with callbacks) cannot say that they are
  /// blocked: after a while without any decision a partial bucket with callbacks is taken for
  /// stuck.
  void UnblockCallbacks();

  const Parts parts_;
  Job& job_;
  std::jthread thread_;
};

}  // namespace horoacc
