#pragma once
// What ranks of a model ask, and whether they are told the truth; the second half of host_model.h.
#include "model/host_model.h"

namespace horoacc::model {

inline void HostModel::Ask(int rank, const HostStep& step) {
  HostRank& own = ranks_[rank];
  const HostRank::Call* const call = own.Find(step.name);
  if (!call && !(step.name.empty() && own.joined())) return;
  Question question;
  question.joins_over = own.joins_over();
  if (call) {
    question.call = call->key;
    question.name = call->name;
    // Where a call may be ended, or more than one leader lies between, less is sure.
    const bool sure = !shape_.again && shape_.dies.empty() && shape_.hosts.size() <= 1 + kFanOut;
    bool alone = true;  // else an earlier question of another rank may be answered first
    for (int other = 0; other < size(); ++other) {
      if (!SameHost(rank, other)) continue;
      const HostRank::Call* const others = ranks_[other].Find(call->name);
      if (sure && others && others->key.generation == call->key.generation &&
          others->told == HostRank::Told::kRoot)
        question.here |= 1u << other;
      alone = alone && !around_[other].asked.contains(call->name);
    }
    if (!alone) question.here = 0;
  }
  around_[rank].question = question;
  around_[rank].asked.insert(question.name);
  const auto asked = own.controller().WhoHas(question.call);
  if (!asked.ok()) own.Must(asked.error());
}

inline void HostModel::LookAtAnswer(int rank) {
  if (!around_[rank].question) return;
  const Question question = *around_[rank].question;
  HostRank& own = ranks_[rank];
  if (question.call) {
    const HostRank::Call* const call = own.Find(question.name);
    if (!call || call->key.generation != question.call->generation) return;
  } else if (own.joins_over() != question.joins_over) {
    return;
  }
  const auto answer = own.controller().WhoHas(question.call);
  if (!answer.ok()) return own.Must(answer.error());
  if (!answer.value()) return;
  around_[rank].question.reset();
  ++answers_;
  uint32_t has = 0, joined = 0;
  for (int other = 0; other < size(); ++other) {
    const HostRank& theirs = ranks_[other];
    // In a direct exchange the hosts' logs have no common order.
    const bool farther = theirs.closed() || theirs.taken() > own.taken() ||
                         theirs.RoundsOf(question.name) > own.RoundsOf(question.name) ||
                         (shape_.eager && shape_.hosts.size() == 2 && !SameHost(rank, other));
    if (farther || theirs.Find(question.name)) has |= 1u << other;
    if (theirs.joins() > own.joins_over()) joined |= 1u << other;
  }
  if (const std::string wrong = WrongWith(*answer.value(), question, has, joined, all_ranks());
      !wrong.empty())
    Wrong(wrong + ": rank " + std::to_string(rank) + " asks of '" + question.name + "', ranks " +
          std::to_string(has) + " have it");
}

// A rank tells its leader of a call that waits for longer than the leaders' patience, and a leader
// that was told keeps the call for as long.
inline void HostModel::CountTold(int rank) {
  using Told = HostRank::Told;
  for (HostRank::Call& call : ranks_[rank].calls()) {
    if (call.announced && call.told == Told::kNobody && call.pauses < pauses_)
      call.told = Told::kHost;
  }
  for (int other = rank; Leads(rank) && other < size() && SameHost(rank, other); ++other) {
    for (HostRank::Call& call : ranks_[other].calls()) {
      if (call.told == Told::kLeader && call.pauses < pauses_) call.told = Told::kRoot;
      if (call.told == Told::kHost) {
        call.told = Told::kLeader;
        call.pauses = pauses_;
      }
    }
  }
}

}  // namespace horoacc::model
