#pragma once
// How hosts name a call to each other, and the short numbers of calls that have run.
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "negotiate/request.h"

namespace horoacc {

/// One call as all ranks of a set name it: ids and generations are each rank's own.
struct CallName {
  bool named = false;
  std::string name;
  uint64_t number = 0;  ///< of an unnamed call
  friend auto operator<=>(const CallName&, const CallName&) = default;

  /// For errors and reports.
  [[nodiscard]] std::string Shown(Collective collective) const {
    return named ? name : NameOfUnnamed(collective, number);
  }
};

/// All ranks take the same decisions in the same order, and each numbers the named allreduces that
/// have run, so all use the same numbers. A number stands for the name and for the request.
///
/// Numbers come in generations of kGeneration. A call that runs again gets a new one if its own is
/// of an older generation, and a call that has not run for a generation is forgotten; so names that
/// come and go take bounded memory. A rank sends numbers of the present generation or the one
/// before, and understands those of the generation before that, too: the receiver has taken all
/// decisions that the sender had taken, and at most as many more runs as the sender has names in
/// flight, of which there are no more than kGeneration.
class CallNumbers {
 public:
  static constexpr uint64_t kGeneration = 16384;

  struct Known {
    CallName call;
    std::shared_ptr<const Request> request;
  };
  /// A named allreduce of all members is decided to run, as `request` asks.
  void Ran(const CallName& call, std::shared_ptr<const Request> request);
  /// The number to send for the call; null: it has none, and its name is sent.
  [[nodiscard]] const uint64_t* NumberOf(const CallName& call) const;
  /// Null: no such number.
  [[nodiscard]] const Known* At(uint64_t number) const;

 private:
  void Sweep();

  std::map<CallName, uint64_t> numbers_;
  std::unordered_map<uint64_t, Known> known_;
  uint64_t next_ = 0;
};

}  // namespace horoacc
