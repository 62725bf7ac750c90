#include "schedule/generate/all_to_all.h"

#include <utility>

namespace horoacc::schedule {
namespace {

constexpr uint32_t kHandOverLane = 0;
constexpr uint32_t kRelayLane = 1;
constexpr uint8_t kRelayChannel = 0;  // from a rank to the relay on its host
constexpr uint8_t kLocalChannel = 1;  // inside a host, without a relay
constexpr uint8_t kRailChannel = 2;   // from the relay to the destination
constexpr uint32_t kStepsOfRelay = 3;

}  // namespace

RailAllToAll::RailAllToAll(Topology topology)
    : Schedule({.goal = Goal::kAllToAll,
                .ranks = topology.ranks(),
                .lanes = 3,
                .chunks = topology.ranks(),
                .hosts_alike = topology.equal()}),
      topology_(std::move(topology)) {}

RailAllToAll::Place RailAllToAll::PlaceOf(uint32_t rank) const {
  const uint32_t host = topology_.host_of(rank);
  const uint32_t first = topology_.first(host);
  return {host, first, topology_.local(host), rank - first};
}

uint32_t RailAllToAll::scratch(uint32_t rank) const {
  const uint32_t local = PlaceOf(rank).local;
  return local > 1 && topology_.hosts() > 1 ? facts().ranks * local : 0;
}

Part RailAllToAll::kept(uint32_t rank, uint32_t chunk) const {
  const Place place = PlaceOf(rank);
  return {chunk / place.local, place.first + chunk % place.local};
}

uint32_t RailAllToAll::RelayedTo(const Place& place, uint32_t other) const {
  const uint32_t theirs = topology_.local(other);
  return theirs > place.i ? (theirs - place.i - 1) / place.local + 1 : 0;
}

uint32_t RailAllToAll::RemoteCount(const Place& place, bool relayed) const {
  if (topology_.equal()) return (topology_.hosts() - 1) * (relayed ? 1 : place.local - 1);
  uint32_t count = 0;
  for (uint32_t host = 0; host < topology_.hosts(); ++host) {
    if (host == place.host) continue;
    const uint32_t mine = RelayedTo(place, host);
    count += relayed ? mine : topology_.local(host) - mine;
  }
  return count;
}

uint32_t RailAllToAll::Remote(const Place& place, bool relayed, uint32_t k) const {
  uint32_t away = 1;
  if (topology_.equal()) {
    const uint32_t each = relayed ? 1 : place.local - 1;
    away += k / each;
    k %= each;
  }
  for (;; ++away) {
    const uint32_t host = (place.host + away) % topology_.hosts();
    const uint32_t mine = RelayedTo(place, host);
    const uint32_t here = relayed ? mine : topology_.local(host) - mine;
    if (k >= here) {
      k -= here;
      continue;
    }
    // This rank relays to every `local`-th rank from i on; other ranks relay to the rest.
    if (relayed) return topology_.first(host) + place.i + k * place.local;
    const uint32_t block = place.local - 1;
    if (k < place.i) return topology_.first(host) + k;
    return topology_.first(host) + place.i + 1 + (k - place.i) / block * place.local +
           (k - place.i) % block;
  }
}

uint32_t RailAllToAll::steps(uint32_t rank, uint32_t lane) const {
  const Place place = PlaceOf(rank);
  if (lane == kHandOverLane) return RemoteCount(place, false) + place.local - 1;
  if (lane == kRelayLane) return RemoteCount(place, true) * (place.local > 1 ? kStepsOfRelay : 1);
  return topology_.hosts() + place.local - 1;
}

Step RailAllToAll::step(uint32_t rank, uint32_t lane, uint32_t k) const {
  const Place place = PlaceOf(rank);
  if (lane == kHandOverLane) return HandOver(place, k);
  return lane == kRelayLane ? Relay(place, k) : Receive(place, k);
}

Step RailAllToAll::HandOver(const Place& place, uint32_t k) const {
  const uint32_t remote = RemoteCount(place, false);
  Step step;
  step.op = Op::kSend;
  step.src = Buffer::kInput;
  step.sends = 1;
  if (k < remote) {
    step.channel = kRelayChannel;
    step.src_chunk = Remote(place, false, k);
    const uint32_t there = topology_.first(topology_.host_of(step.src_chunk));
    step.peer[0] = place.first + (step.src_chunk - there) % place.local;
  } else {
    step.channel = kLocalChannel;
    step.src_chunk = place.first + (place.i + 1 + k - remote) % place.local;
    step.peer[0] = step.src_chunk;
  }
  return step;
}

Step RailAllToAll::Relay(const Place& place, uint32_t k) const {
  const uint32_t each = place.local > 1 ? kStepsOfRelay : 1;
  const uint32_t remote = Remote(place, true, k / each);
  const uint32_t kept = remote * place.local;
  Step step;
  switch (each == 1 ? 2 : k % each) {
    case 0:
      step.op = Op::kCopy;
      step.src = Buffer::kInput;
      step.src_chunk = remote;
      step.dst = Buffer::kScratch;
      step.dst_chunk = kept + place.i;
      break;
    case 1:
      step.op = Op::kRecv;
      step.channel = kRelayChannel;
      step.flags = kReceiveRange;
      step.peer[0] = place.first;
      step.peer[1] = place.local;
      step.dst = Buffer::kScratch;
      step.dst_chunk = kept;
      break;
    default:
      step.op = Op::kSend;
      step.channel = kRailChannel;
      step.sends = 1;
      step.peer[0] = remote;
      step.src = each == 1 ? Buffer::kInput : Buffer::kScratch;
      step.src_chunk = each == 1 ? remote : kept;
      step.count = static_cast<uint16_t>(place.local);
  }
  return step;
}

Step RailAllToAll::Receive(const Place& place, uint32_t k) const {
  const uint32_t remote = topology_.hosts() - 1;
  if (k == remote) return CopyThrough(place.first + place.i, 1, 0);
  Step step;
  step.op = Op::kRecv;
  step.dst = Buffer::kOutput;
  step.receives = 1;
  if (k < remote) {
    const uint32_t host = (place.host + topology_.hosts() - 1 - k) % topology_.hosts();
    step.channel = kRailChannel;
    step.count = static_cast<uint16_t>(topology_.local(host));
    step.dst_chunk = topology_.first(host);
    step.peer[0] = step.dst_chunk + place.i % topology_.local(host);
  } else {
    step.channel = kLocalChannel;
    step.dst_chunk = place.first + (place.i + place.local - (k - remote)) % place.local;
    step.peer[0] = step.dst_chunk;
  }
  return step;
}

DirectAllToAll::DirectAllToAll(uint32_t ranks)
    : Schedule({.goal = Goal::kAllToAll,
                .ranks = ranks,
                .lanes = 2,
                .chunks = ranks,
                .hosts_alike = true}) {}

uint32_t DirectAllToAll::steps(uint32_t, uint32_t lane) const {
  return lane == 0 ? facts().ranks - 1 : facts().ranks;
}

Step DirectAllToAll::step(uint32_t rank, uint32_t lane, uint32_t k) const {
  const uint32_t ranks = facts().ranks;
  if (lane == 1 && k == 0) return CopyThrough(rank, 1, 0);
  Step step;
  if (lane == 0) {
    step.op = Op::kSend;
    step.sends = 1;
    step.src = Buffer::kInput;
    step.peer[0] = step.src_chunk = (rank + 1 + k) % ranks;
  } else {
    step.op = Op::kRecv;
    step.receives = 1;
    step.dst = Buffer::kOutput;
    step.peer[0] = step.dst_chunk = (rank + ranks - k) % ranks;
  }
  return step;
}

}  // namespace horoacc::schedule
