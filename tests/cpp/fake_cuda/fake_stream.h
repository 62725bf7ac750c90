#pragma once
// Streams and events of the fake GPU.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace horoacc::testing {

inline void SleepShortly() { std::this_thread::sleep_for(std::chrono::microseconds(200)); }

/// What waits for it waits for what was recorded by then, wherever it is recorded next.
class FakeEvent {
 public:
  using Record = std::shared_ptr<std::atomic<bool>>;  ///< whether a stream has come to it
  [[nodiscard]] Record Begin() {
    const std::scoped_lock lock(mutex_);
    return last_ = std::make_shared<std::atomic<bool>>(false);
  }
  [[nodiscard]] Record last() {
    const std::scoped_lock lock(mutex_);
    return last_;
  }

 private:
  std::mutex mutex_;
  Record last_ = std::make_shared<std::atomic<bool>>(true);
};

/// Runs tasks later, in order, on a thread of its own that ends with the process.
class FakeStream {
 public:
  FakeStream() {
    std::thread([this] { Run(); }).detach();
  }
  void Put(std::function<void()> task) {
    const std::scoped_lock lock(mutex_);
    tasks_.push_back(std::move(task));
    moved_.notify_all();
  }
  /// Later tasks wait until `over()`, perhaps for another process. `waits` counts waiting streams.
  void PutWait(std::function<bool()> over, std::atomic<int>& waits) {
    Put([over = std::move(over), &waits] {
      waits.fetch_add(1);
      while (!over()) SleepShortly();
      waits.fetch_sub(1);
    });
  }
  void Drain() {
    std::unique_lock lock(mutex_);
    moved_.wait(lock, [this] { return tasks_.empty() && !busy_; });
  }
  std::atomic<bool> captured{false};

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      moved_.wait(lock, [this] { return !tasks_.empty(); });
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      busy_ = true;
      lock.unlock();
      SleepShortly();  // finds callers that do not wait for it
      task();
      lock.lock();
      busy_ = false;
      moved_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable moved_;
  std::deque<std::function<void()>> tasks_;
  bool busy_ = false;
};

}  // namespace horoacc::testing
