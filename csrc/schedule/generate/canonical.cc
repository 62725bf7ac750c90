#include "schedule/generate/canonical.h"

#include <algorithm>
#include <utility>

namespace horoacc::schedule {
namespace {

constexpr uint32_t kShowLane = 0;
constexpr uint32_t kReduceLane = 1;
constexpr uint32_t kUpLane = 2;
constexpr uint32_t kAddLane = 3;  // for height 1; one more lane for each further height
// Lanes of results, numbered from 0 behind the lanes that add.
constexpr uint32_t kResultIn = 0;
constexpr uint32_t kResultOut = 1;
constexpr uint32_t kShareOut = 2;
constexpr uint32_t kShareIn = 3;
constexpr uint32_t kLanesOfResults = 4;

constexpr uint8_t kShowChannel = 0;
constexpr uint8_t kResultChannel = 1;
constexpr uint8_t kShareChannel = 2;
constexpr uint8_t kUpChannel = 3;  // for height 1; one more channel for each further height

// The number of lanes that pass results on; a reduce has one, to its root.
uint32_t LanesOfResults(Goal goal) {
  if (goal == Goal::kAllreduce) return kLanesOfResults;
  return goal == Goal::kReduce ? kResultIn + 1 : 0;
}

}  // namespace

CanonicalReduction::CanonicalReduction(const Topology& topology, Goal goal, uint32_t root)
    : CanonicalReduction(topology, BlockTree(topology), goal, root) {}

CanonicalReduction::CanonicalReduction(const Topology& topology, BlockTree tree, Goal goal,
                                       uint32_t root)
    : Schedule(FactsOf(topology, tree, goal, root)),
      topology_(topology),
      tree_(std::move(tree)),
      notes_(static_cast<size_t>(facts().ranks) * facts().lanes),
      awaited_(notes_.size()),
      kept_(facts().ranks) {
  if (facts().ranks == 1) return;
  NoteReduction();
  NoteWayUp();
  for (std::vector<uint32_t>& kept : kept_) {
    std::ranges::sort(kept);
    kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
  }
  if (everywhere()) NoteResultsToHosts();
  if (goal != Goal::kReduce) return;
  for (uint32_t shard = 0; shard < facts().chunks; ++shard) {
    const uint32_t owner = OwnerOf(shard);
    if (owner == root) continue;
    Append(root, kAddLane + height() + kResultIn, {.shard = shard, .peer = owner}, kNothing);
  }
}

Facts CanonicalReduction::FactsOf(const Topology& topology, const BlockTree& tree, Goal goal,
                                  uint32_t root) {
  return {.goal = goal,
          .ranks = topology.ranks(),
          .lanes = kAddLane + tree.height() + LanesOfResults(goal),
          .chunks = goal == Goal::kReduceScatter                  ? topology.ranks()
                    : goal == Goal::kReduce && tree.height() == 0 ? 1
                                                                  : tree.even_shards(),
          .root = root,
          .in_rank_order = true};
}

// The block that adds the two halves of a subtree, unless the shard's way up leads through another.
uint32_t CanonicalReduction::AdderIn(const BlockTree::Node& node, uint32_t shard) const {
  if (facts().goal == Goal::kReduceScatter) {
    const uint32_t block = tree_.block_of(shard);
    if (node.holds(block)) return block;
  }
  const uint32_t block = tree_.block_of(facts().root);
  if (facts().goal != Goal::kReduce || node.height == 0 || !node.holds(block)) {
    return node.turn(shard);
  }
  if (tree_.depth_of(block) == 1) return block;
  const BlockTree::Node& left = tree_.nodes()[node.child[0]];
  return (left.holds(block) ? tree_.nodes()[node.child[1]] : left).turn(shard);
}

// The rank of a block that makes its sum of a shard. If all ranks share a host, a reduce's root
// makes it.
uint32_t CanonicalReduction::ReducerOf(uint32_t block, uint32_t shard) const {
  if (facts().goal == Goal::kReduce && height() == 0) return facts().root;
  return tree_.blocks()[block].reducer(shard);
}

uint32_t CanonicalReduction::OwnerOf(uint32_t shard) const {
  return ReducerOf(AdderIn(tree_.root(), shard), shard);
}

uint32_t CanonicalReduction::RelayOf(uint32_t host, uint32_t shard) const {
  const uint32_t owner = OwnerOf(shard);
  if (topology_.host_of(owner) == host) return owner;
  return topology_.first(host) + shard % topology_.local(host);
}

void CanonicalReduction::Keep(uint32_t rank, uint32_t shard) {
  if (!everywhere()) kept_[rank].push_back(shard);
}

uint32_t CanonicalReduction::PlaceOf(uint32_t rank, uint32_t shard) const {
  if (everywhere()) return shard;
  const std::vector<uint32_t>& kept = kept_[rank];
  return static_cast<uint32_t>(std::ranges::lower_bound(kept, shard) - kept.begin());
}

void CanonicalReduction::Append(uint32_t rank, uint32_t lane, Note note, uint32_t needs) {
  const size_t index = static_cast<size_t>(rank) * facts().lanes + lane;
  if (needs != kNothing && (awaited_[index] >> needs & 1) == 0) {
    note.after = 1u << needs;
    awaited_[index] |= note.after | awaited_[static_cast<size_t>(rank) * facts().lanes + needs];
  }
  notes_[index].push_back(note);
}

// A rank shows shards to the next reducers first, so that not all ranks begin with the same one,
// and shows the shards of one reducer in the order in which that rank reduces them.
void CanonicalReduction::NoteReduction() {
  for (uint32_t rank = 0; rank < facts().ranks; ++rank) {
    const BlockTree::Block& block = tree_.blocks()[tree_.block_of(rank)];
    for (uint32_t group = 0; group < facts().chunks && block.ranks > 1; group += block.ranks) {
      for (uint32_t k = 1; k <= block.ranks; ++k) {
        const uint32_t shard = group + (rank + k) % block.ranks;
        if (shard >= facts().chunks) continue;
        const uint32_t reducer = ReducerOf(tree_.block_of(rank), shard);
        const uint32_t lane = reducer == rank ? kReduceLane : kShowLane;
        Append(rank, lane, {.shard = shard, .peer = reducer}, kNothing);
        if (lane == kReduceLane && height() > 0) Keep(rank, shard);
      }
    }
  }
}

// Messages of one height are sent and added in the order of the shards. Because every lane has the
// same order, the first outstanding message can always move.
void CanonicalReduction::NoteWayUp() {
  const std::vector<BlockTree::Node>& nodes = tree_.nodes();
  std::vector<uint32_t> by_height(nodes.size());
  for (uint32_t n = 0; n < by_height.size(); ++n) by_height[n] = n;
  std::ranges::stable_sort(by_height, {}, [&](uint32_t n) { return nodes[n].height; });
  std::vector<std::vector<uint32_t>> adder(nodes.size());  // by node and shard
  for (auto& of_node : adder) of_node.resize(facts().chunks);
  for (uint32_t shard = 0; shard < facts().chunks; ++shard) {
    adder.back()[shard] = AdderIn(tree_.root(), shard);
    for (uint32_t n = static_cast<uint32_t>(nodes.size()); n-- > 0;) {
      if (nodes[n].height == 0) continue;
      for (const uint32_t c : nodes[n].child) {
        const uint32_t above = adder[n][shard];
        adder[c][shard] = nodes[c].holds(above) ? above : AdderIn(nodes[c], shard);
      }
    }
  }
  // By block and shard: the lane that made the block's sum of it.
  std::vector<std::vector<uint32_t>> made(tree_.blocks().size());
  for (uint32_t b = 0; b < made.size(); ++b) {
    made[b].resize(facts().chunks, tree_.blocks()[b].ranks == 1 ? kNothing : kReduceLane);
  }
  for (const uint32_t n : by_height) {
    const BlockTree::Node& node = nodes[n];
    if (node.height == 0) continue;
    const auto of_height = static_cast<uint8_t>(node.height);
    for (uint32_t shard = 0; shard < facts().chunks; ++shard) {
      const uint32_t to = adder[n][shard];
      const bool left = nodes[node.child[0]].holds(to);
      const uint32_t from = adder[node.child[left ? 1 : 0]][shard];
      const uint32_t sender = ReducerOf(from, shard);
      const uint32_t receiver = ReducerOf(to, shard);
      const auto note = [&](uint32_t block, uint32_t peer) -> Note {
        return {shard, peer, 0, of_height, made[block][shard] == kNothing};
      };
      const uint32_t lane = kAddLane + of_height - 1;
      Append(sender, kUpLane, note(from, receiver), made[from][shard]);
      Append(receiver, lane, note(to, sender), made[to][shard]);
      if (node.height < height()) Keep(receiver, shard);
      made[to][shard] = lane;
    }
  }
}

void CanonicalReduction::NoteResultsToHosts() {
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

uint32_t CanonicalReduction::scratch(uint32_t rank) const {
  return static_cast<uint32_t>(kept_[rank].size());
}

Part CanonicalReduction::kept(uint32_t rank, uint32_t chunk) const {
  return {kept_[rank][chunk], 0};
}

uint32_t CanonicalReduction::steps(uint32_t rank, uint32_t lane) const {
  if (facts().ranks == 1) return lane == kReduceLane ? 1 : 0;
  return static_cast<uint32_t>(notes_[rank * facts().lanes + lane].size());
}

Step CanonicalReduction::step(uint32_t rank, uint32_t lane, uint32_t k) const {
  if (facts().ranks == 1) return CopyThrough(0, 1, kPrescaleOwn | kPostscale);
  const Note& note = notes_[rank * facts().lanes + lane][k];
  const bool adds = lane >= kAddLane && lane < kAddLane + height();
  if (lane == kReduceLane) return ReduceBlock(note, rank);
  if (lane == kUpLane || adds) return GoUp(note, rank, adds);
  Step step;
  step.after = note.after;
  step.peer[0] = note.peer;
  if (lane == kShowLane) {
    step.op = Op::kSend;
    step.channel = kShowChannel;
    step.src = Buffer::kInput;
    step.src_chunk = note.shard;
    step.sends = 1;
    return step;
  }
  PassResult(step, rank, lane - kAddLane - height(), note.shard);
  return step;
}

// A rank that makes a reduce's result for the root does not store it.
void CanonicalReduction::Store(Step& step, uint32_t rank, uint32_t shard, bool last) const {
  if (last) step.flags |= kPostscale;
  if (last && facts().goal == Goal::kReduce && rank != facts().root) {
    step.op = Op::kRecvReduceSend;
    step.sends = 1;
    step.peer[step.receives] = facts().root;
    return;
  }
  step.op = Op::kRecvReduce;
  step.dst = last ? Buffer::kOutput : partials();
  step.dst_chunk = last ? shard : PlaceOf(rank, shard);
}

Step CanonicalReduction::ReduceBlock(const Note& note, uint32_t rank) const {
  const BlockTree::Block& block = tree_.blocks()[tree_.block_of(rank)];
  Step step;
  step.channel = kShowChannel;
  step.flags = kReceiveRange | kPrescaleOwn | kPrescaleReceived;
  step.peer[0] = block.first;
  step.peer[1] = block.ranks;
  step.src = Buffer::kInput;
  step.src_chunk = note.shard;
  Store(step, rank, note.shard, height() == 0);
  return step;
}

Step CanonicalReduction::GoUp(const Note& note, uint32_t rank, bool adds) const {
  Step step;
  step.after = note.after;
  step.peer[0] = note.peer;
  step.channel = static_cast<uint8_t>(kUpChannel + note.height - 1);
  step.src = note.raw ? Buffer::kInput : partials();
  step.src_chunk = note.raw ? note.shard : PlaceOf(rank, note.shard);
  step.flags = note.raw ? kPrescaleOwn : 0;
  if (adds) {
    step.receives = 1;
    Store(step, rank, note.shard, note.height == height());
  } else {
    step.op = Op::kSend;
    step.sends = 1;
  }
  return step;
}

void CanonicalReduction::PassResult(Step& step, uint32_t rank, uint32_t lane,
                                    uint32_t shard) const {
  step.src_chunk = step.dst_chunk = shard;
  step.channel = lane == kResultIn || lane == kResultOut ? kResultChannel : kShareChannel;
  // A rank that adds for a reduce's root sends in the same step.
  if (!everywhere()) step.channel = static_cast<uint8_t>(kUpChannel + height() - 1);
  if (lane == kResultIn || lane == kShareIn) {
    step.op = Op::kRecv;
    step.dst = Buffer::kOutput;
    step.receives = 1;
    return;
  }
  step.op = Op::kSend;
  step.src = Buffer::kOutput;
  if (lane == kResultOut) {
    step.sends = 1;
  } else {
    step.flags = kSendRange;
    step.peer[1] = topology_.local(topology_.host_of(rank));
  }
}

}  // namespace horoacc::schedule
