#pragma once
// From an entry to a row that the other ranks can read, and the news that this rank is ready.
#include <memory>

#include "runtime/job/job.h"
#include "runtime/sets/process_set.h"

namespace horoacc {

/// Stateless. Every method but CheckNumerics is called under the set's submit lock
/// (SetQueue::mutex).
class Publisher {
 public:
  explicit Publisher(Job& job) : job_(job) {}

  /// If settings say so: the first element of a reduction's inputs that is infinite or NaN makes
  /// the entry invalid.
  void CheckNumerics(CollectiveEntry& entry) const;
  /// Publishes the entry, behind an earlier call of its id if there is one.
  Status PublishInTurn(ProcessSet& set, const std::shared_ptr<CollectiveEntry>& entry);
  /// Publishes the entries of the backlog whose ids are free by now.
  Status PublishBacklog(ProcessSet& set);
  /// Announces this rank's join, once all that it has submitted before is published.
  static Status AnnounceJoin(ProcessSet& set);

 private:
  Status Publish(ProcessSet& set, const std::shared_ptr<CollectiveEntry>& entry);
  Status PublishRow(ProcessSet& set, CollectiveEntry& entry, uint64_t generation);
  /// Decides where peers find the entry's data: where the caller has it, in a staged copy, or (row
  /// private, nothing staged) in window rings later; Adasum has no windows.
  [[nodiscard]] Status Place(ProcessSet& set, CollectiveEntry& entry);
  static Status LookUpAgain(ProcessSet& set, CollectiveEntry& entry);

  Job& job_;
};

}  // namespace horoacc
