#pragma once
// Questions between two ranks of different hosts: where its interpreter is, and how it is.
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "negotiate/wire.h"
#include "runtime/job/reading.h"

namespace horoacc {

enum class RankQuestion : uint8_t {
  kStack,    ///< the main thread's, in a line
  kReading,  ///< of a ReadingScope
};

/// Any thread, but for the two that JobChannel calls. A rank's latest question of a kind counts.
class RankQuestions {
 public:
  struct Surroundings {
    std::function<void(int rank, RankQuestion, const ReadingScope&)> ask;
    std::function<void(int rank, RankQuestion, const std::string&)> answer;
    std::function<std::string()> stack;
    std::function<std::string(const ReadingScope&)> reading;
    std::function<void()> wake_coordinator;  ///< it calls Answer
  };
  explicit RankQuestions(Surroundings surroundings) : around_(std::move(surroundings)) {}

  /// AnswerOf has the answer, once it came, until all who have asked for it have called Forget;
  /// those who ask for stacks, which are short, need not.
  void Ask(int rank, RankQuestion question, const ReadingScope& scope = {});
  [[nodiscard]] std::optional<std::string> AnswerOf(int rank, RankQuestion question);
  void Forget(int rank, RankQuestion question);
  /// Answers the ranks that have asked. Takes up to seconds: the coordinator's, without the
  /// driver's lock.
  void Answer();

  // Messages.
  void OnQuestion(int source, RankQuestion question, const ReadingScope& scope);
  /// An answer to nothing is passed over.
  void OnAnswer(int source, RankQuestion question, std::string text);

 private:
  using Key = std::pair<int, RankQuestion>;  ///< the other rank
  struct Answers {
    int askers = 0;
    std::optional<std::string> latest;
  };

  const Surroundings around_;
  std::mutex mutex_;
  std::map<Key, Answers> answers_;         ///< to this rank
  std::map<Key, ReadingScope> questions_;  ///< to this rank, unanswered
};

}  // namespace horoacc
