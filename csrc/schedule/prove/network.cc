#include "schedule/prove/network.h"

namespace horoacc::schedule {

std::string PlaceOf(const Actor& actor) {
  return "rank " + std::to_string(actor.rank) + ", lane " + std::to_string(actor.lane) +
         ", window " + std::to_string(actor.window) + ", step " + std::to_string(actor.k) + " ";
}

std::string WhyStuck(Network& network, const Actor& actor, uint32_t depth) {
  if (!actor.fetched) return PlaceOf(actor) + "never begins";
  const Step& step = actor.step;
  std::string text = PlaceOf(actor) + "waits for ever";
  ForEachSource(step, actor.rank, [&](uint32_t peer) {
    if (!actor.received && network.Find(peer, actor.rank, step.channel).messages.empty()) {
      text += ", to receive from rank " + std::to_string(peer);
    }
  });
  ForEachTarget(step, actor.rank, [&](uint32_t peer) {
    if (network.Find(actor.rank, peer, step.channel).messages.size() >= depth) {
      text += ", to send to rank " + std::to_string(peer);
    }
  });
  return text;
}

}  // namespace horoacc::schedule
