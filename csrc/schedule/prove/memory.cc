#include "schedule/prove/memory.h"

namespace horoacc::schedule {
namespace {

uint64_t Bit(uint32_t rank) { return uint64_t{1} << rank; }

// Whether the goal gives rank r chunk c as input; then that is the chunk's content at the start.
bool HasInput(const Facts& facts, uint32_t rank, uint32_t chunk) {
  if (facts.goal == Goal::kAllGather) return chunk == rank;
  if (facts.goal == Goal::kBroadcast) return rank == facts.root;
  return true;
}

bool HasOutput(const Facts& facts, uint32_t rank, uint32_t chunk) {
  if (facts.goal == Goal::kReduceScatter) return chunk == rank;
  if (facts.goal == Goal::kReduce) return rank == facts.root;
  return true;
}

Value Promised(const Facts& facts, uint32_t rank, uint32_t chunk, uint32_t whole_sum) {
  const uint64_t everybody = ~uint64_t{0} >> (64 - facts.ranks);
  switch (facts.goal) {
    case Goal::kAllGather:
      return {.ranks = Bit(chunk), .chunk = chunk};
    case Goal::kBroadcast:
      return {.ranks = Bit(facts.root), .chunk = chunk};
    case Goal::kAllToAll:
      return {.ranks = Bit(chunk), .chunk = rank};
    default:
      return {.ranks = everybody,
              .chunk = chunk,
              .expression = whole_sum,
              .scaled = true,
              .finished = true};
  }
}

std::string Show(const Value& value) {
  return "chunk " + std::to_string(value.chunk) + " of ranks " + std::to_string(value.ranks) +
         " (mask)" + (value.scaled ? ", scaled" : "") + (value.finished ? ", finished" : "") +
         (value.expression != 0 ? ", combined as " + std::to_string(value.expression) : "");
}

}  // namespace

Memory::Memory(const Schedule& schedule, const Rules& rules, Expressions& expressions)
    : facts_(schedule.facts()), rules_(rules) {
  uint32_t next = facts_.ranks * rules.windows * (rules.in_place ? 1 : 2) * facts_.chunks;
  for (uint32_t rank = 0; rank < facts_.ranks; ++rank) {
    scratch_.push_back(schedule.scratch(rank));
    for (uint32_t place = 0; place < rules.places; ++place) {
      scratch_bases_.push_back(next);
      next += scratch_.back();
    }
  }
  cells_.resize(next);
  if (facts_.in_rank_order) {
    std::vector<uint32_t> leaves;
    for (uint32_t rank = 0; rank < facts_.ranks; ++rank) leaves.push_back(expressions.Leaf(rank));
    whole_sum_ = expressions.Balanced(leaves);
  }
  for (uint32_t window = 0; window < rules.windows; ++window) PutInputs(window, expressions);
}

void Memory::PutInputs(uint32_t window, Expressions& expressions) {
  for (uint32_t rank = 0; rank < facts_.ranks; ++rank) {
    const uint32_t leaf = facts_.in_rank_order ? expressions.Leaf(rank) : 0;
    const uint32_t base = BaseOf(rank, window, Buffer::kInput);
    for (uint32_t chunk = 0; chunk < facts_.chunks; ++chunk) {
      if (HasInput(facts_, rank, chunk)) {
        cells_[base + chunk].value = {.ranks = Bit(rank), .chunk = chunk, .expression = leaf};
      }
    }
  }
}

uint32_t Memory::BaseOf(uint32_t rank, uint32_t window, Buffer buffer) const {
  if (buffer == Buffer::kScratch) {
    return scratch_bases_[rank * rules_.places + window % rules_.places];
  }
  const uint32_t buffers = rules_.in_place ? 1 : 2;
  const uint32_t which = buffers == 2 && buffer == Buffer::kOutput ? 1 : 0;
  return ((window * facts_.ranks + rank) * buffers + which) * facts_.chunks;
}

Extent Memory::Find(uint32_t rank, uint32_t window, Buffer buffer, uint32_t chunk, uint32_t count,
                    const char** wrong) const {
  if (buffer == Buffer::kNone) return {};
  const uint32_t size = buffer == Buffer::kScratch ? scratch_[rank] : facts_.chunks;
  if (count > 0 && (chunk >= size || count > size)) *wrong = "names a chunk that does not exist";
  return {BaseOf(rank, window, buffer), chunk, size, count};
}

bool Memory::Writable(uint32_t rank, Buffer buffer, uint32_t chunk) const {
  if (buffer == Buffer::kInput) return false;
  return buffer == Buffer::kScratch || HasOutput(facts_, rank, chunk);
}

std::string Memory::CheckOutputs(uint32_t window) const {
  for (uint32_t rank = 0; rank < facts_.ranks; ++rank) {
    const uint32_t base = BaseOf(rank, window, Buffer::kOutput);
    for (uint32_t chunk = 0; chunk < facts_.chunks; ++chunk) {
      if (!HasOutput(facts_, rank, chunk)) continue;
      const Value promised = Promised(facts_, rank, chunk, whole_sum_);
      const Value& value = cells_[base + chunk].value;
      if (value == promised) continue;
      return "rank " + std::to_string(rank) + ", window " + std::to_string(window) +
             ", output chunk " + std::to_string(chunk) + " holds " + Show(value) + " and not " +
             Show(promised);
    }
  }
  return {};
}

}  // namespace horoacc::schedule
