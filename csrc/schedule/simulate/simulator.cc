#include "schedule/simulate/simulator.h"

#include <algorithm>
#include <bit>
#include <queue>
#include <utility>

#include "schedule/simulate/link_table.h"
#include "schedule/simulate/wires.h"

namespace horoacc::schedule {
namespace {

// A lane of a simulated rank.
struct Lane {
  uint32_t window = 0, k = 0;
  bool busy = false;    ///< a step has started and not ended
  bool parked = false;  ///< waits until other lanes of the rank end the window
  double idle = 0;      ///< the time since which it has been idle
  double worked = 0;    ///< seconds for which it was busy
  Step step;            ///< the current step
};

enum class What : uint8_t {
  kBegin,  ///< a lane checks whether it can begin its next step
  kEnd,    ///< a lane's step ends
  kLand,   ///< a message is at the interface of its receiver's host
};

struct Event {
  double time;
  uint64_t order;  ///< at equal times the older event comes first, so that runs repeat
  uint64_t whose;  ///< a lane, or the key of a link
  What what;
  friend bool operator<(const Event& a, const Event& b) {
    return a.time != b.time ? a.time > b.time : a.order > b.order;
  }
};

class Simulation {
 public:
  Simulation(const Schedule& schedule, const Topology& topology, const Fabric& fabric,
             double chunk_bytes, uint32_t windows, bool one_host)
      : schedule_(schedule),
        facts_(schedule.facts()),
        fabric_(fabric),
        one_host_(one_host),
        ranks_(one_host ? topology.local(0) : facts_.ranks),
        chunk_bytes_(chunk_bytes),
        windows_(windows),
        wires_(topology, fabric, one_host ? 1 : topology.hosts()),
        lanes_(static_cast<size_t>(ranks_) * facts_.lanes) {}

  Run Go() {
    run_.window_ends.resize(windows_);
    for (uint32_t lane = 0; lane < lanes_.size(); ++lane) Wake(lane, 0);
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      ++run_.events;
      const auto lane = static_cast<uint32_t>(event.whose);
      if (event.what == What::kBegin) Begin(lane, event.time);
      if (event.what == What::kEnd) End(lane, event.time);
      if (event.what == What::kLand) Land(event.whose, event.time);
    }
    run_.busiest = std::max(wires_.busiest(), links_.busiest());
    for (const Lane& lane : lanes_) run_.busiest = std::max(run_.busiest, lane.worked);
    return std::move(run_);
  }

 private:
  // The link between two ranks, or its counterpart whose sender is simulated.
  [[nodiscard]] uint64_t KeyOf(uint32_t from, uint32_t to, uint8_t channel) const {
    if (one_host_) {
      const uint32_t shift = from - from % ranks_;
      from -= shift;
      to = (to + facts_.ranks - shift) % facts_.ranks;
    }
    return (static_cast<uint64_t>(from) * facts_.ranks + to) << 8 | channel;
  }
  Link& LinkOf(uint32_t from, uint32_t to, uint8_t channel) {
    return links_.Find(KeyOf(from, to, channel));
  }

  void Push(double time, uint64_t whose, What what) { events_.push({time, order_++, whose, what}); }
  void Wake(uint32_t lane, double time) { Push(time, lane, What::kBegin); }

  void Begin(uint32_t index, double now) {
    Lane& lane = lanes_[index];
    if (lane.busy || lane.window == windows_) return;
    const uint32_t rank = index / facts_.lanes;
    if (lane.k == schedule_.steps(rank, index % facts_.lanes)) return EndWindow(index, now);
    const Step step = schedule_.step(rank, index % facts_.lanes, lane.k);
    for (uint32_t mask = step.after; mask != 0; mask &= mask - 1) {
      const auto other = static_cast<uint32_t>(std::countr_zero(mask));
      if (lanes_[rank * facts_.lanes + other].window > lane.window) continue;
      lane.parked = true;
      return;
    }
    double ready = now, begins = lane.idle;
    uint32_t messages = 0;
    bool waits = false;
    ForEachSource(step, rank, [&](uint32_t peer) {
      Link& link = LinkOf(peer, rank, step.channel);
      ++messages;
      if (link.landed == link.taken) {
        link.awaited_by = index;
        waits = true;
      } else {
        ready = std::max(ready, link.arrivals[link.taken % kLinkDepth]);
        begins = std::max(begins, link.begins[link.taken % kLinkDepth]);
      }
    });
    if (waits) return;
    if (ready > now) return Wake(index, ready);
    const uint32_t received = messages;
    ForEachTarget(step, rank, [&](uint32_t peer) {
      Link& link = LinkOf(rank, peer, step.channel);
      ++messages;
      if (link.posted - link.released < kLinkDepth) return;
      link.room_for = index;
      waits = true;
    });
    if (waits) return;
    ForEachSource(step, rank, [&](uint32_t peer) { ++LinkOf(peer, rank, step.channel).taken; });
    lane.busy = true;
    lane.step = step;
    const double ends = messages * fabric_.overhead + Worked(step, received, begins, now);
    lane.worked += ends - now;
    Push(ends, index, What::kEnd);
  }

  // When the rank has done its own work on the bytes. It reduces slices as they arrive, so that
  // only the last slice remains when all bytes have arrived.
  [[nodiscard]] double Worked(const Step& step, uint32_t received, double begins,
                              double now) const {
    const double bytes = step.count * chunk_bytes_;
    if (step.op == Op::kCopy) return now + bytes / fabric_.reduce_bandwidth;
    if (step.op != Op::kRecvReduce && step.op != Op::kRecvReduceSend &&
        step.op != Op::kRecvReduceCopySend) {
      return now;
    }
    const double rate = fabric_.reduce_bandwidth / received;
    return std::max(now + std::min(bytes, fabric_.slice_bytes) / rate, begins + bytes / rate);
  }

  void End(uint32_t index, double now) {
    Lane& lane = lanes_[index];
    const uint32_t rank = index / facts_.lanes;
    ForEachSource(lane.step, rank, [&](uint32_t peer) {
      Link& link = LinkOf(peer, rank, lane.step.channel);
      ++link.released;
      if (link.room_for != kNobody) Wake(std::exchange(link.room_for, kNobody), now);
    });
    ForEachTarget(lane.step, rank, [&](uint32_t peer) {
      const uint64_t key = KeyOf(rank, peer, lane.step.channel);
      Link& link = links_.Find(key);
      const double bytes = lane.step.count * chunk_bytes_;
      link.bytes[link.posted++ % kLinkDepth] = bytes;
      if (wires_.Local(rank, peer)) {
        Deliver(link, wires_.Pass(rank, bytes, now), bytes / fabric_.local_bandwidth);
      } else {
        Push(wires_.Leave(rank, bytes, now), key, What::kLand);
      }
    });
    lane.busy = false;
    lane.idle = now;
    ++lane.k;
    Begin(index, now);
  }

  void Land(uint64_t key, double now) {
    Link& link = links_.Find(key);
    const double bytes = link.bytes[link.landed % kLinkDepth];
    const auto to = static_cast<uint32_t>((key >> 8) % facts_.ranks);
    Deliver(link, wires_.Land(to, bytes, now), bytes / fabric_.stream_bandwidth);
  }

  // `carried`: how long the message keeps its own link busy.
  void Deliver(Link& link, const Passage& passage, double carried) {
    link.last = std::max(passage.ends, std::max(passage.begins, link.last) + carried);
    link.carried += carried;
    link.begins[link.landed % kLinkDepth] = passage.begins;
    link.arrivals[link.landed++ % kLinkDepth] = link.last;
    if (link.awaited_by != kNobody) Wake(std::exchange(link.awaited_by, kNobody), link.last);
  }

  void EndWindow(uint32_t index, double now) {
    Lane& lane = lanes_[index];
    double& end = run_.window_ends[lane.window];
    end = std::max(end, now);
    ++lane.window;
    lane.k = 0;
    const uint32_t first = index - index % facts_.lanes;
    for (uint32_t other = first; other < first + facts_.lanes; ++other) {
      if (std::exchange(lanes_[other].parked, false)) Wake(other, now);
    }
    Wake(index, now);
  }

  const Schedule& schedule_;
  const Facts facts_;
  const Fabric& fabric_;
  const bool one_host_;
  const uint32_t ranks_;  ///< number of simulated ranks
  const double chunk_bytes_;
  const uint32_t windows_;
  Wires wires_;
  std::vector<Lane> lanes_;
  LinkTable links_;
  std::priority_queue<Event> events_;
  uint64_t order_ = 0;
  Run run_;
};

}  // namespace

Run Simulate(const Schedule& schedule, const Topology& topology, const Fabric& fabric, double bytes,
             uint32_t windows, bool one_host) {
  const Facts& facts = schedule.facts();
  const bool alike = one_host && facts.hosts_alike && topology.equal();
  return Simulation(schedule, topology, fabric, bytes / facts.chunks, windows, alike).Go();
}

namespace {

constexpr uint32_t kSimulatedWindows = 6;

// After so few windows fast lanes have ended and leave the wires to slow ones, so the last windows
// look too fast: hence the lower bound by the busiest resource.
double SecondsFor(const Schedule& schedule, const Topology& topology, const Fabric& fabric,
                  double bytes, uint32_t windows, uint64_t& events) {
  const Run run =
      Simulate(schedule, topology, fabric, bytes / windows, std::min(windows, kSimulatedWindows));
  events += run.events;
  const double seconds = run.window_ends.back();
  if (windows <= kSimulatedWindows) return seconds;
  constexpr uint32_t kSpan = kSimulatedWindows / 2;
  const double each = std::max((seconds - run.window_ends[kSimulatedWindows - 1 - kSpan]) / kSpan,
                               run.busiest / kSimulatedWindows);
  return seconds + (windows - kSimulatedWindows) * each;
}

}  // namespace

Prediction Predict(const Schedule& schedule, const Topology& topology, const Fabric& fabric,
                   double bytes) {
  constexpr double kUsualWindow = 512 << 10;
  constexpr uint32_t kStride = 4;  // a factor of two hardly makes a difference
  constexpr double kLeastWindow = 64 << 10;
  Prediction best;
  const auto seconds = [&](uint32_t windows) {
    return SecondsFor(schedule, topology, fabric, bytes, windows, best.events);
  };
  best.windows = std::bit_floor(static_cast<uint32_t>(std::clamp(bytes / kUsualWindow, 1.0, 1e6)));
  best.seconds = seconds(best.windows);
  // Goes from the usual number to fewer or more windows while the time falls.
  const uint32_t start = best.windows;
  for (uint32_t windows = start; windows > 1;) {
    windows = std::max(1u, windows / kStride);
    const double fewer = seconds(windows);
    if (fewer >= best.seconds) break;
    best.seconds = fewer;
    best.windows = windows;
  }
  if (best.windows < start) return best;
  for (uint32_t windows = start * kStride; bytes / windows >= kLeastWindow; windows *= kStride) {
    const double more = seconds(windows);
    if (more >= best.seconds) break;
    best.seconds = more;
    best.windows = windows;
  }
  return best;
}

}  // namespace horoacc::schedule
