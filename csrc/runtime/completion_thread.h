#pragma once
// Runs the framework's callbacks, so that the engine never does: a callback may take the GIL or
// submit the next call.
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace horoacc {

class CompletionThread {
 public:
  ~CompletionThread() { Stop(); }
  /// Starts the thread at the first use: jobs without callbacks do not pay for it.
  void Post(std::function<void()> callback);
  /// Runs what was posted, then ends the thread. Callbacks posted later are run by the poster.
  void Stop();

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> posted_;
  bool stopping_ = false;
  std::jthread thread_;
};

}  // namespace horoacc
