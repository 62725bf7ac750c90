// What the tests of joins submit.
#pragma once
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "support/ranks.h"

namespace horoacc::testing {

/// Numbers of a rank, where the test asks for them.
class Numbers {
 public:
  Numbers(Engine& engine, size_t count, bool in_arena)
      : engine_(engine), own_(count), count_(count) {
    data_ = in_arena ? static_cast<int32_t*>(engine.AllocateShared(count * 4)) : own_.data();
    in_arena_ = in_arena;
  }
  ~Numbers() {
    if (in_arena_) engine_.FreeShared(data_);
  }
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;
  [[nodiscard]] int32_t* data() const { return data_; }
  [[nodiscard]] size_t count() const { return count_; }
  void Fill(int32_t value) const { std::fill_n(data_, count_, value); }
  void Expect(int32_t value) const {
    for (size_t i = 0; i < count_; ++i) CHECK_EQ(data_[i], value);
  }

 private:
  Engine& engine_;
  std::vector<int32_t> own_;
  size_t count_;
  int32_t* data_;
  bool in_arena_;
};

inline Submission Reduction(const std::string& name, const Numbers& numbers,
                            ReduceOp op = ReduceOp::kSum) {
  return Make(Collective::kAllreduce, name, DType::kInt32, {static_cast<int64_t>(numbers.count())},
              numbers.data(), numbers.data(), op);
}

inline uint64_t Submit(Engine& engine, Submission submission) {
  auto handle = engine.Submit(std::move(submission));
  if (!handle.ok()) check::Fail(__FILE__, __LINE__, handle.error().message);
  return handle.value();
}

inline void Finish(Engine& engine, uint64_t handle) {
  const Status outcome = WaitAndRelease(engine, handle);
  if (!outcome.ok()) check::Fail(__FILE__, __LINE__, outcome.error().message);
}

inline uint64_t BeginJoin(Engine& engine, uint32_t process_set = 0, double limit_seconds = 0) {
  Submission join;
  join.limit_seconds = limit_seconds;
  join.request.collective = Collective::kJoin;
  join.process_set = process_set;
  return Submit(engine, std::move(join));
}

inline int EndJoin(Engine& engine, uint64_t handle) {
  const Status outcome = engine.Wait(handle, NowNs() + 60 * kSecond);
  if (!outcome.ok()) check::Fail(__FILE__, __LINE__, outcome.error().message);
  int32_t last = -1;
  std::memcpy(&last, engine.Find(handle)->tensors[0].output, sizeof last);
  engine.Release(handle);
  return last;
}

}  // namespace horoacc::testing
