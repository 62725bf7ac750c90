#include "runtime/completion_thread.h"

#include <utility>

namespace horoacc {

void CompletionThread::Post(std::function<void()> callback) {
  {
    std::lock_guard lock(mutex_);
    if (!stopping_) {
      posted_.push_back(std::exchange(callback, nullptr));
      if (!thread_.joinable()) thread_ = std::jthread([this] { Run(); });
      changed_.notify_one();
    }
  }
  if (callback) callback();
}

void CompletionThread::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable() && thread_.get_id() != std::this_thread::get_id()) thread_.join();
}

void CompletionThread::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !posted_.empty(); });
    if (posted_.empty()) return;
    const std::function<void()> callback = std::move(posted_.front());
    posted_.pop_front();
    lock.unlock();
    callback();
    lock.lock();
  }
}

}  // namespace horoacc
