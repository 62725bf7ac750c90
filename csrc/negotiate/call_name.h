#pragma once
// How the ranks of a spread controller name a call.
#include <compare>
#include <cstdint>
#include <string>

#include "negotiate/request.h"

namespace horoacc {

/// One call as all ranks of a set name it: their ids and generations are their own affair.
struct CallName {
  bool named = false;
  std::string name;
  uint64_t number = 0;  ///< of an unnamed call
  friend auto operator<=>(const CallName&, const CallName&) = default;

  /// For errors and reports.
  [[nodiscard]] std::string Shown(Collective collective) const {
    return named ? name : std::string(NameOf(collective)) + ".noname." + std::to_string(number);
  }
};

}  // namespace horoacc
