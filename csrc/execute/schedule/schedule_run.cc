#include "execute/schedule/schedule_run.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace horoacc {

using schedule::Buffer;
using schedule::Op;
using schedule::Step;

namespace {

/// The length of the longest message of every link of a rank.
struct LinkLengths {
  using Name = std::pair<uint32_t, uint8_t>;  ///< place of the peer, channel
  std::map<Name, uint64_t> sent, received;

  void Add(const Step& step, uint32_t place, uint64_t length) {
    const auto raise = [&step, length](std::map<Name, uint64_t>& links, uint32_t peer) {
      uint64_t& longest = links[{peer, step.channel}];
      longest = std::max(longest, length);
    };
    ForEachTarget(step, place, [&](uint32_t peer) { raise(sent, peer); });
    ForEachSource(step, place, [&](uint32_t peer) { raise(received, peer); });
  }
};

}  // namespace

ScheduleRun::ScheduleRun(ChunkMap map, std::shared_ptr<const schedule::Schedule> schedule,
                         const RunOptions& options, RunMemory memory)
    : schedule_(std::move(schedule)), memory_(std::move(memory)), shared_(std::move(map)) {
  shared_.slicing = {std::max<uint64_t>(options.slice_bytes, 64),
                     options.depth > 1 ? std::max(options.most_slices, 1u) : 1u};
  // No more windows are under way than there are; slots cost a little each.
  const uint64_t windows = std::max<uint64_t>(shared_.map.windows(), 2);
  shared_.depth = static_cast<uint32_t>(std::min<uint64_t>(options.depth, windows));
  shared_.places = options.places;
  shared_.chunks = schedule_->facts().chunks;
}

ScheduleRun::~ScheduleRun() {
  senders_.clear();
  receivers_.clear();
  if (arena_memory_ == nullptr) return;
  if (memory_.retire) {
    memory_.retire(arena_memory_);
  } else {
    memory_.arena->Free(arena_memory_);
  }
}

Result<std::unique_ptr<ScheduleRun>> ScheduleRun::Make(
    DataLinks& links, std::shared_ptr<const schedule::Schedule> schedule, const RunGroup& group,
    const RunOptions& options, Payload payload, RunMemory memory) {
  const auto& members = group.member_of_place;
  const auto found = std::ranges::find(members, group.me);
  if (options.depth == 0 || options.places == 0 || found == members.end() ||
      group.ranks.size() != members.size()) {
    return MakeError(ErrorKind::kInvalid, "a run needs a depth, places, and this rank's own");
  }
  if (schedule->facts().in_rank_order && !std::ranges::is_sorted(members)) {
    return MakeError(ErrorKind::kInvalid,
                     "a schedule that adds in the order of ranks needs them in that order");
  }
  const auto place = static_cast<uint32_t>(found - members.begin());
  HA_ASSIGN(ChunkMap map,
            ChunkMap::Make(*schedule, place, members, std::move(payload), options.window_bytes));
  std::unique_ptr<ScheduleRun> run(
      new ScheduleRun(std::move(map), std::move(schedule), options, std::move(memory)));
  if (run->shared_.map.windows() == 0) {
    run->complete_ = true;
    return run;
  }
  HA_TRY(run->AllocateMemory(place));
  run->collective_ = options.collective;
  HA_TRY(run->Open(links, group, place));
  return run;
}

// One block for the scratch of all windows in flight.
Status ScheduleRun::AllocateMemory(uint32_t place) {
  const ChunkMap& map = shared_.map;
  const uint64_t scratch = schedule_->scratch(place) * map.chunk_bytes();
  for (uint32_t lane = 0; lane < schedule_->facts().lanes && map.keeps_partials_apart(); ++lane) {
    for (uint32_t k = 0; k < schedule_->steps(place, lane); ++k) {
      const Step step = schedule_->step(place, lane, k);
      shared_.keeps_apart |= step.dst == Buffer::kOutput && StoresPartial(step);
    }
  }
  const uint64_t apart = shared_.keeps_apart ? shared_.chunks * map.chunk_bytes() : 0;
  shared_.scratch_chunks = schedule_->scratch(place);
  if (scratch + apart == 0) return {};
  // No more windows are in flight than there are.
  const uint64_t places = std::min<uint64_t>(shared_.places, map.windows());
  shared_.places = static_cast<uint32_t>(places);
  const uint64_t bytes = places * (scratch + apart);
  std::byte* base = nullptr;
  if (memory_.arena != nullptr) {
    arena_memory_ = memory_.arena->Allocate(bytes);
    base = static_cast<std::byte*>(arena_memory_);
    if (base == nullptr) {
      return MakeError(ErrorKind::kSystem, "no shared memory left for the " +
                                               std::to_string(bytes) + " bytes of a collective");
    }
  } else {
    constexpr size_t kAlign = 64;
    private_memory_.resize(bytes + kAlign);
    base = private_memory_.data();
    base += (kAlign - reinterpret_cast<uintptr_t>(base) % kAlign) % kAlign;
  }
  for (uint64_t k = 0; k < places; ++k, base += scratch + apart) {
    shared_.scratch.push_back(base);
    shared_.apart.push_back(base + scratch);
    shared_.finished.emplace_back(shared_.chunks);
  }
  return {};
}

Status ScheduleRun::Open(DataLinks& links, const RunGroup& group, uint32_t place) {
  const ChunkMap& map = shared_.map;
  const uint32_t lanes = schedule_->facts().lanes;
  std::vector<std::vector<Step>> steps(lanes);
  LinkLengths lengths;
  std::vector<Extent> extents;
  for (uint32_t lane = 0; lane < lanes; ++lane) {
    const uint32_t count = schedule_->steps(place, lane);
    for (uint32_t k = 0; k < count; ++k) {
      ForEachGatherStep(schedule_->step(place, lane, k), place,
                        [&](const Step& step) { steps[lane].push_back(step); });
    }
    for (const Step& step : steps[lane]) {
      // The first window has the longest chunks.
      const bool own = step.src != Buffer::kNone;
      const Buffer buffer = own ? step.src : step.dst;
      const uint32_t size = buffer == Buffer::kScratch ? shared_.scratch_chunks : shared_.chunks;
      extents.clear();
      for (uint32_t k = 0; k < step.count; ++k) {
        const uint32_t chunk = ((own ? step.src_chunk : step.dst_chunk) + k) % size;
        map.Append({.buffer = buffer, .chunk = chunk}, extents);
      }
      lengths.Add(step, place, map.LengthOf(extents));
    }
  }
  const auto spec = [&](const LinkLengths::Name& name, uint64_t longest) -> LinkSpec {
    return {.collective = collective_,
            .peer = group.ranks[group.member_of_place[name.first]],
            .channel = name.second,
            .slots = shared_.depth * shared_.slicing.MostUpTo(longest),
            .slot_bytes = shared_.slicing.LongestUpTo(longest) * map.widest()};
  };
  std::map<LinkLengths::Name, SendLink*> sending;
  std::map<LinkLengths::Name, ReceiveLink*> receiving;
  for (const auto& [name, longest] : lengths.received) {
    HA_ASSIGN(auto link, links.OpenReceive(spec(name, longest)));
    receiving[name] = link.get();
    receivers_.push_back(std::move(link));
  }
  for (const auto& [name, longest] : lengths.sent) {
    HA_ASSIGN(auto link, links.OpenSend(spec(name, longest)));
    sending[name] = link.get();
    senders_.push_back(std::move(link));
  }
  for (const std::vector<Step>& of_lane : steps) {
    Lane& lane = lanes_.emplace_back(shared_);
    for (const Step& step : of_lane) {
      LaneStep with_links;
      with_links.step = step;
      std::vector<uint32_t> sources;
      ForEachSource(step, place, [&](uint32_t peer) { sources.push_back(peer); });
      std::ranges::sort(sources);
      for (const uint32_t peer : sources) {
        with_links.sources.push_back(receiving[{peer, step.channel}]);
        if (peer < place) ++with_links.own_position;
      }
      ForEachTarget(step, place, [&](uint32_t peer) {
        with_links.targets.push_back(sending[{peer, step.channel}]);
      });
      lane.Add(std::move(with_links));
    }
  }
  return {};
}

// The memory of this window is that of an earlier one.
bool ScheduleRun::MayBegin(uint64_t window) {
  if (shared_.scratch.empty() || window < drained_ + shared_.places) return true;
  // The first lane that begins a window finds out for all: later the records are of other windows.
  const bool over = std::ranges::all_of(lanes_, [this](const Lane& lane) {
    return lane.window() > drained_ && lane.TakenOf(drained_);
  });
  if (over) ++drained_;
  return over;
}

void ScheduleRun::Follow(ChunkPipeline& flow) {
  if (shared_.map.windows() > 0) pipeline_ = &flow;
}

// The lanes are through with a window when all have begun the next one.
Result<bool> ScheduleRun::MovePipeline() {
  bool moved = false;
  const uint64_t windows = shared_.map.windows();
  if (arrived_ < windows) {
    HA_ASSIGN(const uint64_t arrived, pipeline_->Arrived());
    moved = std::exchange(pipeline_at_, arrived) != arrived;
    for (; arrived_ < windows && shared_.map.EndOfWindow(arrived_) <= arrived; ++arrived_)
      moved = true;
  }
  uint64_t done = windows;
  for (const Lane& lane : lanes_) done = std::min(done, lane.window());
  if (done > left_) {
    HA_TRY(pipeline_->Leave(shared_.map.EndOfWindow(done - 1)));
    left_ = done;
    moved = true;
  }
  return moved;
}

bool ScheduleRun::Advance() {
  if (complete_ || error_) return false;
  bool moved = false;
  if (pipeline_ != nullptr) {
    Result<bool> flowed = MovePipeline();
    if (!flowed.ok()) {
      error_ = std::move(flowed.error());
      return true;
    }
    moved = flowed.value();
  }
  bool ended = true;
  for (Lane& lane : lanes_) {
    if (lane.ended()) continue;
    ended = false;
    if (lane.between_windows()) {
      const bool here = pipeline_ == nullptr || lane.window() < arrived_;
      if (!here || !MayBegin(lane.window())) continue;
    }
    const uint32_t awaits = lane.awaits();
    bool awaited = true;
    for (uint32_t other = 0; other < lanes_.size(); ++other) {
      if ((awaits >> other & 1) != 0) awaited &= lanes_[other].window() > lane.window();
    }
    if (!awaited) continue;
    Result<bool> advanced = lane.Advance();
    if (!advanced.ok()) {
      error_ = std::move(advanced.error()).Within("a scheduled collective");
      return true;
    }
    moved |= advanced.value();
  }
  if (!ended) return moved;
  complete_ = std::ranges::none_of(senders_, [](const auto& link) { return link->Reads(); });
  return complete_;
}

std::string ScheduleRun::Waiting() const {
  std::string text;
  for (size_t k = 0; k < lanes_.size(); ++k) {
    if (lanes_[k].ended()) continue;
    text += (text.empty() ? "lane " : "; lane ") + std::to_string(k) + " " + lanes_[k].Waiting();
  }
  return text.empty() ? "what was sent was not taken yet" : text;
}

uint64_t ScheduleRun::bytes_posted() const {
  uint64_t bytes = 0;
  for (const auto& link : senders_) bytes += link->bytes_posted();
  return bytes;
}

}  // namespace horoacc
