#pragma once
// The order in which ranks stop touching each other's shared blocks after an abort, and a rank
// frees its own. Templates over what they touch: a model check runs them over all interleavings
// (tests/cpp/model/quarantine_model.h).

namespace horoacc::quarantine {

/// After this rank has recorded the failure. A thread that submits holds a set's queue while it
/// looks for a failure and, as the last rank to arrive, writes results into blocks of its peers.
template <typename DropRuns, typename PassQueues, typename Note>
void StopTouching(const DropRuns& drop_runs, const PassQueues& pass_queues, const Note& note) {
  drop_runs();
  pass_queues();  // takes each and gives it back: a thread that takes one later sees the failure
  note();
}

/// Whether a rank touches no block of its peers any more.
template <typename Rank>
bool HasStopped(const Rank& rank) {
  return rank.has_noted() || rank.has_left() || rank.is_dead();
}

/// `free`s a block, or `keep`s it until every rank of the host HasStopped.
template <typename Aborted, typename Free, typename Keep>
void GiveBack(const Aborted& aborted, const Free& free, const Keep& keep) {
  if (aborted()) return keep();
  free();
}

/// When this engine ends, whatever its peers do.
template <typename StopAllocating, typename FreeKept>
void End(const StopAllocating& stop_allocating, const FreeKept& free_kept) {
  stop_allocating();  // a block that a late peer still writes must not become another tensor's
  free_kept();
}

}  // namespace horoacc::quarantine
