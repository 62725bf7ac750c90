#pragma once
// Asks other ranks for the Python stacks of their main threads, through the control segment, or
// between hosts by message; their coordinators answer.
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/job/job.h"
#include "runtime/sets/process_set.h"

namespace horoacc {

/// Any thread.
class StackExchange {
 public:
  explicit StackExchange(Job& job) : job_(job), asked_(job.placement.size) {}

  /// Answers if another rank has asked for this rank's stack. The coordinator's.
  void Answer();
  /// Asks some of `ranks`, each at most once a second however many calls wait for it. True once the
  /// answers are there, or late. Under the queue's lock.
  [[nodiscard]] bool HasAnswersOf(const std::vector<int>& ranks, CollectiveEntry& entry);
  /// "; rank 1 is in load (data.py:20) < <module> (train.py:7)"
  [[nodiscard]] std::string Describe(const std::vector<int>& ranks);
  /// "; rank 1 lacks 'fc.bias' and 'fc.weight'": of buckets, what keeps those that have answered.
  [[nodiscard]] std::string Lacking(const std::vector<int>& ranks);

 private:
  void Ask(int rank);
  [[nodiscard]] bool HasAnswered(int rank);
  [[nodiscard]] std::optional<std::string> StackOf(int rank);
  [[nodiscard]] std::string LacksOf(int rank);

  Job& job_;
  std::mutex mutex_;
  /// By rank: the number of this rank's latest question, and when it was asked.
  struct Asked {
    uint32_t number = 0;
    int64_t at_ns = 0;
  };
  std::vector<Asked> asked_;
};

}  // namespace horoacc
