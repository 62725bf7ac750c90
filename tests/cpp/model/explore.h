#pragma once
// All interleavings of a few processes over shared memory, by breadth-first search over states.
//
// A model has the steps of a protocol, and takes the rules by which they are chosen from the code
// that it models where it can. Its State consists of bytes only (so that states can be compared and
// hashed as bytes), and one call of its Step is one access to shared memory.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/check.h"

namespace horoacc::model {

enum class Outcome { kMoved, kBlocked };

struct Report {
  uint64_t states = 0;
  std::string wrong;  ///< empty: every interleaving ends well
};

namespace detail {

// Open addressing over indices into the vector of states.
template <typename State>
class StateSet {
 public:
  StateSet() : slots_(1u << 16) {}
  /// Its index in `states`, at the end of which it is put if it is new.
  uint32_t Insert(const State& state, std::vector<State>& states) {
    if (2 * (states.size() + 1) > slots_.size()) Grow(states);
    uint64_t at = Hash(state) & (slots_.size() - 1);
    for (; slots_[at] != 0; at = (at + 1) & (slots_.size() - 1)) {
      if (std::memcmp(&states[slots_[at] - 1], &state, sizeof state) == 0) return slots_[at] - 1;
    }
    states.push_back(state);
    slots_[at] = static_cast<uint32_t>(states.size());
    return slots_[at] - 1;
  }

 private:
  static uint64_t Hash(const State& state) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(&state);
    uint64_t hash = 0xcbf29ce484222325ull;
    for (size_t k = 0; k < sizeof state; ++k) hash = (hash ^ bytes[k]) * 0x100000001b3ull;
    return hash ^ hash >> 32;
  }
  void Grow(const std::vector<State>& states) {
    std::vector<uint32_t> larger(slots_.size() * 4);
    for (uint32_t index = 0; index < states.size(); ++index) {
      uint64_t at = Hash(states[index]) & (larger.size() - 1);
      while (larger[at] != 0) at = (at + 1) & (larger.size() - 1);
      larger[at] = index + 1;
    }
    slots_.swap(larger);
  }
  std::vector<uint32_t> slots_;
};

}  // namespace detail

/// `Model` has: State; initial(); processes(); Step(State&, process, const char** wrong);
/// Done(State). From every state that can be reached, a state that is done must be reachable: so
/// there is neither a deadlock nor a loop without a way out.
template <typename Model>
Report Explore(const Model& model, uint64_t most_states = 8'000'000) {
  using State = typename Model::State;
  static_assert(std::has_unique_object_representations_v<State>);
  std::vector<State> states;
  detail::StateSet<State> seen;
  std::vector<std::pair<uint32_t, uint32_t>> edges;  // to, from
  seen.Insert(model.initial(), states);
  for (uint32_t at = 0; at < states.size(); ++at) {
    for (uint32_t process = 0; process < model.processes(); ++process) {
      State next = states[at];
      const char* wrong = nullptr;
      if (model.Step(next, process, &wrong) == Outcome::kBlocked) continue;
      if (wrong) return {states.size(), wrong};
      edges.emplace_back(seen.Insert(next, states), at);
    }
    if (states.size() > most_states) return {states.size(), "more states than can be explored"};
  }
  // Backwards from the ends.
  std::vector<uint32_t> first(states.size() + 1);
  for (const auto& edge : edges) ++first[edge.first + 1];
  for (size_t k = 1; k < first.size(); ++k) first[k] += first[k - 1];
  std::vector<uint32_t> sources(edges.size());
  std::vector<uint32_t> next_place(first.begin(), first.end() - 1);
  for (const auto& edge : edges) sources[next_place[edge.first]++] = edge.second;
  std::vector<uint8_t> ends(states.size());
  std::vector<uint32_t> open;
  for (uint32_t at = 0; at < states.size(); ++at) {
    if (!model.Done(states[at])) continue;
    ends[at] = 1;
    open.push_back(at);
  }
  while (!open.empty()) {
    const uint32_t at = open.back();
    open.pop_back();
    for (uint32_t k = first[at]; k < first[at + 1]; ++k) {
      if (ends[sources[k]]) continue;
      ends[sources[k]] = 1;
      open.push_back(sources[k]);
    }
  }
  for (const uint8_t end : ends) {
    if (end == 0) return {states.size(), "somebody waits for ever"};
  }
  return {states.size(), ""};
}

/// Checks that the model has no wrong state, and that all its ends are reached.
template <typename Model>
void Holds(const Model& model) {
  const Report report = Explore(model);
  std::printf("  %llu states\n", static_cast<unsigned long long>(report.states));
  CHECK_EQ(report.wrong, "");
}

template <typename Model>
void IsCaught(const Model& model, const char* how) {
  CHECK_EQ(Explore(model).wrong, how);
}

}  // namespace horoacc::model
