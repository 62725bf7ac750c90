// A call of the engine's own, among all ranks.
#pragma once

#include <string>
#include <utility>

#include "runtime/engine/engine.h"

namespace horoacc {

inline Submission InSetZero(std::string name, Collective collective) {
  Submission submission;
  submission.name = std::move(name);
  submission.request.collective = collective;
  return submission;
}

}  // namespace horoacc
