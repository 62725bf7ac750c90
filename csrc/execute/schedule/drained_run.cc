#include "execute/schedule/drained_run.h"

#include <cstring>
#include <utility>

namespace horoacc {

Result<std::unique_ptr<DrainedRun>> DrainedRun::Make(std::span<const ReducePiece> pieces, Rail rail,
                                                     bool wide,
                                                     BetweenHosts::Surroundings between) {
  const RailPart part(pieces, rail, wide);
  std::unique_ptr<DrainedRun> made(new DrainedRun(part.bytes()));
  HA_ASSIGN(made->between_, BetweenHosts::Make(std::move(between), part, *made));
  std::memset(made->between_->sums(), 0, part.bytes());
  return made;
}

}  // namespace horoacc
