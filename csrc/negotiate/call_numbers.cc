#include "negotiate/call_numbers.h"

#include <utility>

namespace horoacc {
namespace {

uint64_t GenerationsBehind(uint64_t number, uint64_t next) {
  return next / CallNumbers::kGeneration - number / CallNumbers::kGeneration;
}

}  // namespace

void CallNumbers::Ran(const CallName& call, std::shared_ptr<const Request> request) {
  const auto found = numbers_.find(call);
  if (found != numbers_.end() && GenerationsBehind(found->second, next_) == 0) {
    known_[found->second].request = std::move(request);
    return;
  }
  numbers_[call] = next_;
  known_[next_] = {call, std::move(request)};
  if (++next_ % kGeneration == 0) Sweep();
}

void CallNumbers::Sweep() {
  constexpr uint64_t kSaid = 1;
  constexpr uint64_t kUnderstood = 2;
  std::erase_if(numbers_,
                [&](const auto& one) { return GenerationsBehind(one.second, next_) > kSaid; });
  std::erase_if(known_,
                [&](const auto& one) { return GenerationsBehind(one.first, next_) > kUnderstood; });
}

const uint64_t* CallNumbers::NumberOf(const CallName& call) const {
  const auto found = numbers_.find(call);
  return found == numbers_.end() ? nullptr : &found->second;
}

const CallNumbers::Known* CallNumbers::At(uint64_t number) const {
  const auto found = known_.find(number);
  return found == known_.end() ? nullptr : &found->second;
}

}  // namespace horoacc
