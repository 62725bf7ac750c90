#include "schedule/generate/canonical.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace horoacc::schedule {
namespace {

constexpr uint32_t kShowLane = 0;
constexpr uint32_t kReduceLane = 1;
constexpr uint32_t kUpLane = 2;
constexpr uint32_t kAddLane = 3;  // of height 1; then one for each height
// Behind the lanes that add.
constexpr uint32_t kResultOut = 0;
constexpr uint32_t kResultIn = 1;
constexpr uint32_t kShareOut = 2;
constexpr uint32_t kShareIn = 3;
constexpr uint32_t kLanesOfResults = 4;

constexpr uint8_t kShowChannel = 0;
constexpr uint8_t kResultChannel = 1;
constexpr uint8_t kShareChannel = 2;
constexpr uint8_t kUpChannel = 3;  // of height 1; then one for each height

}  // namespace

CanonicalAllreduce::CanonicalAllreduce(const Topology& topology)
    : CanonicalAllreduce(topology, ShapeOf(topology), ShardsOf(ShapeOf(topology))) {}

CanonicalAllreduce::CanonicalAllreduce(const Topology& topology, Shape shape, uint32_t shards)
    : Schedule({.goal = Goal::kAllreduce,
                .ranks = topology.ranks(),
                .lanes = kAddLane + shape.nodes.back().height + kLanesOfResults,
                .chunks = shards,
                .in_rank_order = true}),
      topology_(topology),
      shape_(std::move(shape)),
      notes_(static_cast<size_t>(facts().ranks) * facts().lanes),
      awaited_(notes_.size()) {
  for (uint32_t b = 0; b < shape_.blocks.size(); ++b) {
    block_of_.insert(block_of_.end(), shape_.blocks[b].ranks, b);
  }
  if (facts().ranks == 1) return;
  NoteReduction();
  NoteWayUp();
  NoteWayDown();
}

CanonicalAllreduce::Shape CanonicalAllreduce::ShapeOf(const Topology& topology) {
  Shape shape;
  Grow(topology, shape, 0, topology.ranks());
  return shape;
}

// Splits as the tree over ranks does, down to what lies on one host. The node's index.
uint32_t CanonicalAllreduce::Grow(const Topology& topology, Shape& shape, uint32_t rank,
                                  uint32_t ranks) {
  Node node{.first = static_cast<uint32_t>(shape.blocks.size())};
  if (topology.host_of(rank) == topology.host_of(rank + ranks - 1)) {
    shape.blocks.push_back({rank, ranks});
  } else {
    const uint32_t half = std::bit_floor(ranks - 1);
    node.child[0] = Grow(topology, shape, rank, half);
    node.child[1] = Grow(topology, shape, rank + half, ranks - half);
    node.blocks = static_cast<uint32_t>(shape.blocks.size()) - node.first;
    for (const uint32_t child : node.child) {
      node.height = std::max(node.height, shape.nodes[child].height + 1);
    }
  }
  shape.nodes.push_back(node);
  return static_cast<uint32_t>(shape.nodes.size()) - 1;
}

// As many for every block, and at least one for each of its ranks.
uint32_t CanonicalAllreduce::ShardsOf(const Shape& shape) {
  const auto blocks = static_cast<uint32_t>(shape.blocks.size());
  uint32_t most = 0;
  for (const Block& block : shape.blocks) most = std::max(most, block.ranks);
  return (most + blocks - 1) / blocks * blocks;
}

uint32_t CanonicalAllreduce::OwnerOf(uint32_t shard) const {
  return shape_.blocks[shape_.nodes.back().adder(shard)].reducer(shard);
}

uint32_t CanonicalAllreduce::RelayOf(uint32_t host, uint32_t shard) const {
  const uint32_t owner = OwnerOf(shard);
  if (topology_.host_of(owner) == host) return owner;
  return topology_.first(host) + shard % topology_.local(host);
}

void CanonicalAllreduce::Append(uint32_t rank, uint32_t lane, Note note, uint32_t needs) {
  const size_t index = static_cast<size_t>(rank) * facts().lanes + lane;
  if (needs != kNothing && (awaited_[index] >> needs & 1) == 0) {
    note.after = 1u << needs;
    awaited_[index] |= note.after | awaited_[static_cast<size_t>(rank) * facts().lanes + needs];
  }
  notes_[index].push_back(note);
}

// To the next reducers first, so that not all ranks begin with the same one; but never two shards
// of one reducer in another order than it reduces them.
void CanonicalAllreduce::NoteReduction() {
  for (uint32_t rank = 0; rank < facts().ranks; ++rank) {
    const Block& block = shape_.blocks[block_of_[rank]];
    const uint32_t i = rank - block.first;
    for (uint32_t group = 0; group < facts().chunks && block.ranks > 1; group += block.ranks) {
      for (uint32_t k = 1; k <= block.ranks; ++k) {
        const uint32_t shard = group + (i + k) % block.ranks;
        if (shard >= facts().chunks) continue;
        const uint32_t lane = k == block.ranks ? kReduceLane : kShowLane;
        Append(rank, lane, {.shard = shard, .peer = block.reducer(shard)}, kNothing);
      }
    }
  }
}

// Messages of one height are sent, and added, in the order of the shards: with every lane in one
// and the same order, the next message of all can always move.
void CanonicalAllreduce::NoteWayUp() {
  std::vector<uint32_t> by_height(shape_.nodes.size());
  for (uint32_t n = 0; n < by_height.size(); ++n) by_height[n] = n;
  std::ranges::stable_sort(by_height, {}, [this](uint32_t n) { return shape_.nodes[n].height; });
  std::vector<std::vector<uint32_t>> adder(shape_.nodes.size());  // by node and shard
  for (auto& of_node : adder) of_node.resize(facts().chunks);
  for (uint32_t shard = 0; shard < facts().chunks; ++shard) {
    adder.back()[shard] = shape_.nodes.back().adder(shard);
    for (uint32_t n = static_cast<uint32_t>(shape_.nodes.size()); n-- > 0;) {
      const Node& node = shape_.nodes[n];
      if (node.height == 0) continue;
      for (const uint32_t c : node.child) {
        const Node& child = shape_.nodes[c];
        const uint32_t above = adder[n][shard];
        adder[c][shard] = child.holds(above) ? above : child.adder(shard);
      }
    }
  }
  // By block and shard: the lane that made what the block has of it.
  std::vector<std::vector<uint32_t>> made(shape_.blocks.size());
  for (uint32_t b = 0; b < made.size(); ++b) {
    made[b].resize(facts().chunks, shape_.blocks[b].ranks == 1 ? kNothing : kReduceLane);
  }
  for (const uint32_t n : by_height) {
    const Node& node = shape_.nodes[n];
    if (node.height == 0) continue;
    const auto height = static_cast<uint8_t>(node.height);
    for (uint32_t shard = 0; shard < facts().chunks; ++shard) {
      const uint32_t to = adder[n][shard];
      const bool left = shape_.nodes[node.child[0]].holds(to);
      const uint32_t from = adder[node.child[left ? 1 : 0]][shard];
      const uint32_t sender = shape_.blocks[from].reducer(shard);
      const uint32_t receiver = shape_.blocks[to].reducer(shard);
      const auto note = [&](uint32_t block, uint32_t peer) -> Note {
        return {shard, peer, 0, height, made[block][shard] == kNothing};
      };
      const uint32_t lane = kAddLane + height - 1;
      Append(sender, kUpLane, note(from, receiver), made[from][shard]);
      Append(receiver, lane, note(to, sender), made[to][shard]);
      made[to][shard] = lane;
    }
  }
}

void CanonicalAllreduce::NoteWayDown() {
  const uint32_t results = kAddLane + height();
  const uint32_t made = height() == 0 ? kReduceLane : results - 1;
  for (uint32_t shard = 0; shard < facts().chunks; ++shard) {
    const uint32_t owner = OwnerOf(shard);
    for (uint32_t host = 0; host < topology_.hosts(); ++host) {
      const uint32_t relay = RelayOf(host, shard);
      const uint32_t first = topology_.first(host);
      if (relay != owner) {
        Append(owner, results + kResultOut, {.shard = shard, .peer = relay}, made);
        Append(relay, results + kResultIn, {.shard = shard, .peer = owner}, kNothing);
      }
      if (topology_.local(host) == 1) continue;
      const uint32_t needs = relay == owner ? made : results + kResultIn;
      Append(relay, results + kShareOut, {.shard = shard, .peer = first}, needs);
      for (uint32_t i = 0; i < topology_.local(host); ++i) {
        if (first + i == relay) continue;
        Append(first + i, results + kShareIn, {.shard = shard, .peer = relay}, kNothing);
      }
    }
  }
}

uint32_t CanonicalAllreduce::steps(uint32_t rank, uint32_t lane) const {
  if (facts().ranks == 1) return lane == kReduceLane ? 1 : 0;
  return static_cast<uint32_t>(notes_[rank * facts().lanes + lane].size());
}

Step CanonicalAllreduce::step(uint32_t rank, uint32_t lane, uint32_t k) const {
  if (facts().ranks == 1) return CopyThrough(0, 1, kPrescaleOwn | kPostscale);
  const Note& note = notes_[rank * facts().lanes + lane][k];
  const uint32_t results = kAddLane + height();
  Step step;
  step.after = note.after;
  step.src_chunk = step.dst_chunk = note.shard;
  step.peer[0] = note.peer;
  if (lane == kShowLane) {
    step.op = Op::kSend;
    step.channel = kShowChannel;
    step.src = Buffer::kInput;
    step.sends = 1;
  } else if (lane == kReduceLane) {
    const Block& block = shape_.blocks[block_of_[rank]];
    step.op = Op::kRecvReduce;
    step.channel = kShowChannel;
    step.flags = kReceiveRange | kPrescaleOwn | kPrescaleReceived;
    if (height() == 0) step.flags |= kPostscale;
    step.peer[0] = block.first;
    step.peer[1] = block.ranks;
    step.src = Buffer::kInput;
    step.dst = Buffer::kOutput;
  } else if (lane < results) {
    const bool adds = lane != kUpLane;
    step.op = adds ? Op::kRecvReduce : Op::kSend;
    step.channel = static_cast<uint8_t>(kUpChannel + note.height - 1);
    step.src = note.raw ? Buffer::kInput : Buffer::kOutput;
    step.flags = note.raw ? kPrescaleOwn : 0;
    (adds ? step.receives : step.sends) = 1;
    if (adds) step.dst = Buffer::kOutput;
    if (adds && note.height == height()) step.flags |= kPostscale;
  } else if (lane == results + kResultIn || lane == results + kShareIn) {
    step.op = Op::kRecv;
    step.channel = lane == results + kResultIn ? kResultChannel : kShareChannel;
    step.dst = Buffer::kOutput;
    step.receives = 1;
  } else {
    const bool shares = lane == results + kShareOut;
    step.op = Op::kSend;
    step.channel = shares ? kShareChannel : kResultChannel;
    step.src = Buffer::kOutput;
    if (shares) {
      step.flags = kSendRange;
      step.peer[1] = topology_.local(topology_.host_of(rank));
    } else {
      step.sends = 1;
    }
  }
  return step;
}

}  // namespace horoacc::schedule
