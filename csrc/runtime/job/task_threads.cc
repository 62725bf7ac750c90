#include "runtime/job/task_threads.h"

#include <pthread.h>

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
      KeepOneFree();
    }
  }
  if (task) task();
}

void TaskThreads::KeepOneFree() {
  if (posted_.empty()) return;
  if (running_ < threads_.size()) return changed_.notify_one();
  if (running_ >= most_) return;
  try {
    threads_.emplace_back([this] { Run(); });
  } catch (const std::system_error&) {
    return;  // the threads that there are run the task, later
  }
}

void TaskThreads::Stop() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
  // By number: a task that waits for a later one may still need a further thread.
  for (size_t k = 0; k < threads_.size(); ++k) {
    // A task that shuts the engine down cannot wait for itself.
    if (!threads_[k].joinable() || threads_[k].get_id() == std::this_thread::get_id()) continue;
    std::jthread thread = std::move(threads_[k]);
    lock.unlock();
    thread.join();
    lock.lock();
  }
}

void TaskThreads::Run() {
  pthread_setname_np(pthread_self(), name_);
  std::unique_lock lock(mutex_);
  for (;;) {
    // Not wait(), whose version in libstdc++ is g++ 12's: wheels are to load beside older ones.
    while (!stopping_ && posted_.empty()) changed_.wait_for(lock, std::chrono::hours(1));
    if (posted_.empty()) return;
    if (running_ > 0) {
      const uint64_t before = taken_;
      changed_.wait_for(lock, kLongTask, [this] { return posted_.empty(); });
      if (posted_.empty() || (taken_ != before && running_ > 0)) continue;
    }
    const std::function<void()> task = std::move(posted_.front());
    posted_.pop_front();
    ++taken_;
    ++running_;
    KeepOneFree();
    lock.unlock();
    task();
    lock.lock();
    --running_;
  }
}

}  // namespace horoacc
