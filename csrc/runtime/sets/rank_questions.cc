#include "runtime/sets/rank_questions.h"

namespace horoacc {

void RankQuestions::Ask(int rank, RankQuestion question, const ReadingScope& scope) {
  {
    std::lock_guard lock(mutex_);
    Answers& answers = answers_[{rank, question}];
    ++answers.askers;
    answers.latest.reset();
  }
  around_.ask(rank, question, scope);
}

std::optional<std::string> RankQuestions::AnswerOf(int rank, RankQuestion question) {
  std::lock_guard lock(mutex_);
  const auto found = answers_.find({rank, question});
  return found == answers_.end() ? std::nullopt : found->second.latest;
}

void RankQuestions::Forget(int rank, RankQuestion question) {
  std::lock_guard lock(mutex_);
  const auto found = answers_.find({rank, question});
  if (found != answers_.end() && --found->second.askers == 0) answers_.erase(found);
}

void RankQuestions::Answer() {
  std::map<Key, ReadingScope> questions;
  {
    std::lock_guard lock(mutex_);
    questions.swap(questions_);
  }
  for (const auto& [key, scope] : questions) {
    const auto [source, question] = key;
    around_.answer(source, question,
                   question == RankQuestion::kStack ? around_.stack() : around_.reading(scope));
  }
}

void RankQuestions::OnQuestion(int source, RankQuestion question, const ReadingScope& scope) {
  {
    std::lock_guard lock(mutex_);
    questions_[{source, question}] = scope;
  }
  around_.wake_coordinator();
}

void RankQuestions::OnAnswer(int source, RankQuestion question, std::string text) {
  std::lock_guard lock(mutex_);
  if (const auto asked = answers_.find({source, question}); asked != answers_.end())
    asked->second.latest = std::move(text);
}

}  // namespace horoacc
