#pragma once
// Threads that run what is posted to them, in order: the framework's callbacks, so that the engine
// never does (a callback may take the GIL, submit the next call, or wait for one), and calls that
// go on although their caller was interrupted.
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/result.h"

namespace horoacc {

/// One task after the other, as a rule. But a callback may wait for another call's callback: when
/// one takes long, a further thread, if there may be one, runs what was posted behind it.
class TaskThreads {
 public:
  /// `most`: threads at a time; of 1, tasks never overlap. `name`: theirs, up to 15 letters.
  TaskThreads(size_t most, const char* name) : most_(most), name_(name) {}
  ~TaskThreads() { Stop(); }
  /// Starts the first thread, so that no later shortage of threads can leave a task without one.
  Status Start();
  void Post(std::function<void()> task);
  /// Runs what was posted, then ends the threads. What is posted later is run by the poster.
  void Stop();

 private:
  void Run();
  /// If a task is posted: wakes a thread that runs none, or starts a further thread if every one is
  /// in a task. Under the mutex.
  void KeepOneFree();

  const size_t most_;
  const char* const name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> posted_;
  bool stopping_ = false;
  size_t running_ = 0;  ///< threads in a task
  uint64_t taken_ = 0;  ///< tasks begun
  std::vector<std::jthread> threads_;
};

}  // namespace horoacc
