#pragma once
// Calls of ranks that are no engines: a call is carried out when the last rank has made it. Ranks
// match calls by name and number, as production does. One thread.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/job/calls.h"
#include "support/check.h"

namespace horoacc::testing {

class FakeCalls final : public Calls {
 public:
  /// What the ranks of a job share.
  struct Job {
    struct Made {
      std::shared_ptr<CollectiveEntry> entry;
      Submission submission;
    };
    uint32_t ranks = 2;
    bool aborted = false;
    std::map<std::string, std::vector<std::deque<Made>>> by_name;  ///< of each rank
    std::vector<std::shared_ptr<CollectiveEntry>> all;

    void Abort() {
      aborted = true;
      for (const auto& entry : all) {
        if (!entry->complete) End(*entry, MakeError(ErrorKind::kPeerLost, "rank 1 was lost", 1));
      }
    }
    /// The engine's part: refusals that are moot are ended. Gives the calls that are left.
    size_t EndMoot() {
      size_t left = 0;
      for (auto& [name, queues] : by_name) {
        for (auto& queue : queues) {
          std::erase_if(queue, [](const Made& made) { return made.entry->IsMoot(); });
          left += queue.size();
        }
      }
      return left;
    }
    static void End(Entry& entry, Status outcome) {
      entry.outcome = std::move(outcome);
      entry.complete = true;
    }
  };

  FakeCalls(Job& job, uint32_t rank) : job_(job), rank_(rank) {}

  /// The next group is refused on this rank.
  bool refuses_groups = false;

  Result<uint64_t> Submit(Submission submission) override {
    if (job_.aborted) return MakeError(ErrorKind::kAborted, "the job was aborted");
    const std::string name = submission.name;
    const bool refuses =
        submission.recurs == Recurs::kInPlan && !submission.request.local_error.empty();
    for (const auto& [handle, held] : held_) CHECK(refuses || held->name() != name);
    if (refuses_groups && submission.request.tensors.size() > 1)
      submission.request.local_error = "this rank refuses";
    const bool invalid = !submission.request.local_error.empty();
    auto entry = std::make_shared<CollectiveEntry>();
    entry->display_name = name;
    entry->named = true;
    entry->handle = ++handles_;
    entry->proposal = {submission.proposal, ++generations_[name]};
    entry->doubts = submission.doubts;
    entry->request.way = submission.request.way;
    if (!invalid) held_[entry->handle] = entry;
    job_.all.push_back(entry);
    auto& queues = job_.by_name[name];
    queues.resize(job_.ranks);
    queues[rank_].push_back({entry, std::move(submission)});
    CarryOut(queues);
    if (invalid) return MakeError(ErrorKind::kInvalid, "refused");
    return entry->handle;
  }
  Status Wait(uint64_t handle, int64_t /*deadline_ns*/) override {
    const auto entry = Find(handle);
    CHECK(entry != nullptr);
    if (!entry->complete) return MakeError(ErrorKind::kTimeout, "not complete");
    return entry->outcome;
  }
  [[nodiscard]] std::shared_ptr<Entry> Find(uint64_t handle) const override {
    const auto found = held_.find(handle);
    return found == held_.end() ? nullptr : found->second;
  }
  void Release(uint64_t handle) override { CHECK_EQ(held_.erase(handle), 1U); }
  [[nodiscard]] Others OthersIn(uint32_t /*process_set*/, const std::string& name) const override {
    Others others = Others::kNothing;
    const auto found = job_.by_name.find(name);
    if (found == job_.by_name.end() || !found->second[rank_].empty()) return others;
    for (const auto& queue : found->second) {
      if (queue.empty()) continue;
      const bool refused = !queue.front().submission.request.local_error.empty();
      others = std::max(others, refused ? Others::kRefused : Others::kSubmitted);
    }
    return others;
  }

 private:
  void CarryOut(std::vector<std::deque<Job::Made>>& queues) {
    for (const auto& queue : queues) {
      if (queue.empty()) return;
    }
    std::vector<Job::Made> made;
    for (auto& queue : queues) {
      made.push_back(std::move(queue.front()));
      queue.pop_front();
    }
    const Submission& first = made[0].submission;
    bool fits = true;
    Proposal all = made[0].entry->proposal;
    for (const auto& [entry, submission] : made) {
      fits = fits && submission.request.local_error.empty() &&
             submission.request.tensors == first.request.tensors &&
             submission.request.way == first.request.way;
      all = all.With(entry->proposal);
    }
    for (size_t t = 0; fits && t < first.buffers.size(); ++t) {
      int32_t sum = 0;
      for (const auto& one : made) {
        int32_t value = 0;
        std::memcpy(&value, one.submission.buffers[t].input, sizeof value);
        sum += value;
      }
      for (const auto& one : made) std::memcpy(one.submission.buffers[t].output, &sum, sizeof sum);
    }
    for (const auto& one : made) {
      one.entry->agreed = fits && all.plan != 0;
      Job::End(*one.entry,
               fits ? Status() : Status(MakeError(ErrorKind::kMismatch, "the ranks disagree")));
    }
  }

  Job& job_;
  const uint32_t rank_;
  uint64_t handles_ = 0;
  std::map<std::string, uint64_t> generations_;
  std::map<uint64_t, std::shared_ptr<CollectiveEntry>> held_;
};

}  // namespace horoacc::testing
