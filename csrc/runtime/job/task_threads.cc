#include "runtime/job/task_threads.h"

#include <chrono>
#include <string>
#include <system_error>
#include <utility>

namespace horoacc {
namespace {

constexpr auto kLongTask = std::chrono::milliseconds(2);

}  // namespace

Status TaskThreads::Start() {
  std::lock_guard lock(mutex_);
  try {
    threads_.emplace_back([this] { Run(); });
  } catch (const std::system_error& refused) {
    return MakeError(ErrorKind::kSystem, std::string("no thread for callbacks: ") + refused.what());
  }
  return {};
}

void TaskThreads::Post(std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    if (!stopping_) {
      posted_.push_back(std::exchange(task, nullptr));
      if (running_ == threads_.size() && running_ < most_) {
        try {
          threads_.emplace_back([this] { Run(); });
        } catch (const std::system_error&) {  // the threads that there are run the task, later
        }
      }
      changed_.notify_one();
    }
  }
  if (task) task();
}

void TaskThreads::Stop() {
  std::vector<std::jthread> threads;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    threads.swap(threads_);
    changed_.notify_all();
  }
  for (std::jthread& thread : threads) {
    // A task that shuts the engine down cannot wait for itself.
    if (thread.get_id() == std::this_thread::get_id()) {
      std::lock_guard lock(mutex_);
      threads_.push_back(std::move(thread));
    } else {
      thread.join();
    }
  }
}

void TaskThreads::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !posted_.empty(); });
    if (posted_.empty()) return;
    if (running_ > 0 && !stopping_) {
      const uint64_t before = taken_;
      changed_.wait_for(lock, kLongTask, [this] { return stopping_ || posted_.empty(); });
      if (posted_.empty() || (taken_ != before && running_ > 0)) continue;
    }
    const std::function<void()> task = std::move(posted_.front());
    posted_.pop_front();
    ++taken_;
    ++running_;
    lock.unlock();
    task();
    lock.lock();
    --running_;
  }
}

}  // namespace horoacc
